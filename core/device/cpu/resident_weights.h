// A mapper laid out for the CPU kernels.
//
// Each target head's weights are cut into column blocks of 32; a column block is a run of steps
// (kernels.h) in feature order, so a kernel reads it front to back. Source heads and target heads
// are padded with zeros to whole steps and column blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "core/base/pages.h"
#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/device/cpu/blocking.h"
#include "core/device/cpu/kernels.h"
#include "core/device/cpu/network.h"
#include "core/mapper/mapper.h"

namespace kvbridge::device::cpu {

// One run of features: one source head of one source layer.
struct Segment {
  int32_t plane;  // in ResidentWeights::planes()
  int32_t head;
};

// K or V of one target layer.
struct ResidentLayer {
  mapper::Support support;
  std::vector<Segment> segments;                    // all heads: full support, and the network
  std::vector<std::vector<Segment>> head_segments;  // head-local: [target_heads]
  const std::byte* weights;  // [target_heads][head_columns][features / 32] steps
  const float* bias;         // [target_heads][padded_dim]
  const float* inv_gamma;    // [padded_dim] or null
  float inv_count;           // 1 / number of dimensions the norm is taken over
  ResidentNetwork network;

  // What the linear part of a target head reads.
  std::span<const Segment> SegmentsOf(int32_t head) const {
    if (support == mapper::Support::kHeadLocal) return head_segments[head];
    return support == mapper::Support::kFull ? segments : std::span<const Segment>();
  }
  int32_t steps(const Blocking& blocking) const {
    return static_cast<int32_t>(SegmentsOf(0).size()) * blocking.head_steps;
  }
};

class ResidentWeights final : public ResidentMapper {
 public:
  // Packs on every worker. INVALID_ARGUMENT names a tensor that holds NaN or infinity.
  static absl::StatusOr<std::unique_ptr<ResidentWeights>> Create(
      std::shared_ptr<const mapper::Mapper> mapper, Precision precision,
      const VerifyWeights& verify, base::WorkerPool& workers);

  const mapper::Mapper& mapper() const override { return *mapper_; }
  uint64_t resident_bytes() const override {
    return memory_->size() + small_.size() * sizeof(float);
  }
  Precision precision() const override { return precision_; }

  const Blocking& blocking() const { return blocking_; }
  const ResidentLayer& layer(int32_t target_layer, kv::Component c) const {
    return layers_[2 * target_layer + static_cast<int>(c)];
  }

  // A source plane that some target layer reads.
  struct Plane {
    int32_t layer;
    kv::Component component;
    int32_t first_use, last_use;  // target layers
    int32_t slot;  // shared with planes whose groups of target layers do not overlap its own
  };
  // In order of first_use.
  const std::vector<Plane>& planes() const { return planes_; }
  // Column blocks of the largest network; 0 = all maps are linear.
  int32_t network_columns() const;

  // Planes that a tile holds at most, if each is kept no longer than it is used.
  int32_t slots() const { return slots_; }

  // The distinct rotations of both models, and which one a layer uses (-1: not rotated).
  const std::vector<model::RopeParams>& rotations() const { return rotations_; }
  int32_t source_rotation(int32_t layer) const { return source_rotation_[layer]; }
  int32_t target_rotation(int32_t layer) const { return target_rotation_[layer]; }

 private:
  ResidentWeights(std::shared_ptr<const mapper::Mapper> mapper, Precision precision,
                  const Blocking& blocking, std::unique_ptr<base::Pages> memory)
      : mapper_(std::move(mapper)),
        precision_(precision),
        blocking_(blocking),
        memory_(std::move(memory)) {}
  void PlanPlanes();
  void PlanSlots();
  void PlanLayers();
  void PlanRotations();
  ResidentNetwork PlanNetwork(const mapper::LayerMap& map, const std::byte* weights) const;
  void FillSmall();
  absl::Status PackAll(const VerifyWeights& verify, base::WorkerPool& workers);
  absl::Status CheckBiases() const;

  const std::shared_ptr<const mapper::Mapper> mapper_;
  const Precision precision_;
  const Blocking blocking_;
  const std::unique_ptr<base::Pages> memory_;
  std::vector<float> small_;  // biases and norms
  std::vector<ResidentLayer> layers_;
  std::vector<Plane> planes_;
  std::vector<int32_t> plane_of_;  // [source_layers * 2]; -1: not read
  int32_t slots_ = 0;
  std::vector<model::RopeParams> rotations_;
  std::vector<int32_t> source_rotation_;
  std::vector<int32_t> target_rotation_;
};

}  // namespace kvbridge::device::cpu
