// The features of one tile, laid out for the CPU kernels.
//
// A source plane (K or V of one layer that some target layer reads) holds, per source head, one run
// of blocks of 32 tokens; a block is head_steps steps (kernels.h). Tokens past the tile's last are
// zero. A tile that takes its source at once has room for every plane; one that takes it layer by
// layer has one for each slot of the mapper.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/device/cpu/resident_weights.h"
#include "core/kv/buffer_pool.h"
#include "core/rope/rope_table.h"

namespace kvbridge::device::cpu {

class CpuTile final : public PreparedTile {
 public:
  // Exactly what a tile of `tokens` takes.
  static uint64_t Bytes(const ResidentWeights& resident, int64_t tokens, SourceUse use);

  // INVALID_ARGUMENT when the source is not what the mapper reads; RESOURCE_EXHAUSTED from the
  // pool. `resident` outlives the tile.
  static absl::StatusOr<std::unique_ptr<CpuTile>> Create(const ResidentWeights& resident,
                                                         const TileSource& source,
                                                         const KernelSet& kernels,
                                                         kv::BufferPool& pool,
                                                         base::WorkerPool& workers);

  uint64_t bytes() const override;
  int32_t source_layers() const override;

  // Makes what `layers` need ready. FAILED_PRECONDITION when a tile that takes its source layer by
  // layer is asked for other layers than the next ones of its group.
  absl::Status TakeSource(kv::LayerRange layers, const KernelSet& kernels,
                          base::WorkerPool& workers);

  int64_t tokens() const { return tokens_; }
  int32_t blocks() const { return blocks_; }

  const std::byte* Block(const Segment& segment, int32_t block) const {
    return buffer_->data() + PlaneOffset(segment.plane, segment.head) + block * segment_bytes_;
  }
  rope::RopeRow Rotation(int32_t rotation, int64_t token) const {
    return tables_[rotation * chunks_ + token / kChunk]->row(token % kChunk);
  }

 private:
  static constexpr int64_t kChunk = 64;  // tokens one worker prepares at a time

  CpuTile(const ResidentWeights& resident, const TileSource& source);
  bool by_layer() const { return source_.use == SourceUse::kByLayer; }
  int64_t PlaneOffset(int32_t plane, int32_t head) const {
    const int32_t slot = by_layer() ? resident_.planes()[plane].slot : plane;
    return (int64_t{slot} * source_heads_ + head) * blocks_ * segment_bytes_;
  }
  void FillTables(std::span<const int64_t> positions, base::WorkerPool& workers);
  void FillPlanes(int32_t begin, int32_t end, const KernelSet& kernels, base::WorkerPool& workers);
  void FillChunk(const KernelSet& kernels, int32_t index, int64_t chunk);

  const ResidentWeights& resident_;
  const TileSource source_;  // its view is read by layer, or not after Create
  const int64_t tokens_;
  const int32_t blocks_;
  const int64_t chunks_;
  const int32_t source_heads_;
  const int64_t segment_bytes_;
  std::shared_ptr<kv::TileBuffer> buffer_;
  std::vector<std::optional<rope::RopeTable>> tables_;  // [rotations][chunks]
  int32_t next_layer_ = 0;                              // by layer: the first not yet asked for
  int32_t next_plane_ = 0;                              // and the first plane not yet filled
};

}  // namespace kvbridge::device::cpu
