// Lays weights out for the kernels, from wherever they are shown.
//
// The unit is a step: up to 32 features of one target head, a run of bytes in the source and one
// block in each of the head's column blocks at the destination. Steps may be packed in any order
// and on several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/worker_pool.h"
#include "core/device/cpu/resident_weights.h"
#include "core/tensor/dtype.h"

namespace kvbridge::device::cpu {

class Packer {
 public:
  // One weight tensor.
  struct Tensor {
    std::span<const std::byte> from;  // [target_heads, segments * source_dim, head_dim]
    tensor::DType dtype;              // kBf16 or kF32
    int32_t segments;
    std::byte* to;  // [target_heads][head_columns][segments * head_steps] steps
  };
  struct Place {
    int64_t tensor;  // in the order of Add
    int32_t head;
  };

  Packer(const Blocking& blocking, int32_t source_dim, int32_t head_dim)
      : blocking_(blocking), source_dim_(source_dim), head_dim_(head_dim) {}

  // Before anything is packed. What is added is borrowed.
  void Add(const Tensor& tensor);

  // Packs the steps whose last byte lies in `piece`, an address range of memory that holds some of
  // the tensors whole. Pieces that do not overlap and together cover a tensor pack all of it. Any
  // thread.
  void PackStepsEndingIn(std::span<const std::byte> piece);
  void PackAll(base::WorkerPool& workers);

  // After all packing.
  std::optional<Place> first_non_finite() const;
  bool complete() const { return packed_ == steps_; }

 private:
  void PackStepsEndingIn(std::span<const std::byte> piece, size_t tensor);
  // A tensor's bytes as steps in order: head by head, segment by segment.
  int64_t StepAt(const Tensor& tensor, int64_t offset) const;
  int64_t Steps(const Tensor& tensor) const;
  bool PackStep(const Tensor& tensor, int64_t step, class StepRows& rows) const;
  int64_t row_bytes(const Tensor& tensor) const;

  const Blocking blocking_;
  const int32_t source_dim_;
  const int32_t head_dim_;
  std::vector<Tensor> tensors_;
  int64_t steps_ = 0;
  std::atomic<int64_t> packed_{0};
  std::atomic<int64_t> first_bad_{INT64_MAX};  // tensor * target_heads + head
};

}  // namespace kvbridge::device::cpu
