// The features of one tile, laid out for the CPU kernels, and the scratch its map needs.
//
// A source plane (K or V of one layer that some target layer reads) holds, per source head, one run
// of blocks of 32 tokens; a block is head_steps steps (kernels.h). Tokens past the tile's last are
// zero.
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

// How much one unit of the map covers at most: its results, 512 tokens by 256 columns of float,
// fill a quarter of a second-level cache of 2 MiB, beside two rounds of weights.
inline constexpr int32_t kUnitBlocks = 16;
inline constexpr int32_t kUnitColumns = 8;

class CpuTile final : public PreparedTile {
 public:
  // Exactly what a tile of `tokens` takes. `lanes`: threads that may work on it at once.
  static uint64_t Bytes(const ResidentWeights& resident, int64_t tokens, int32_t lanes);

  // INVALID_ARGUMENT when the source is not what the mapper reads; RESOURCE_EXHAUSTED from the
  // pool.
  static absl::StatusOr<std::unique_ptr<CpuTile>> Create(const ResidentWeights& resident,
                                                         const TileSource& source,
                                                         const KernelSet& kernels, int32_t lanes,
                                                         kv::BufferPool& pool,
                                                         base::WorkerPool& workers);

  uint64_t bytes() const override { return bytes_; }
  int64_t tokens() const { return tokens_; }
  int32_t blocks() const { return blocks_; }

  const std::byte* Block(const Segment& segment, int32_t block) const {
    return buffer_->data() + PlaneOffset(segment.slot, segment.head) + block * segment_bytes_;
  }
  rope::RopeRow Rotation(int32_t rotation, int64_t token) const {
    return tables_[rotation * chunks_ + token / kChunk]->row(token % kChunk);
  }
  // [lanes] buffers of ScratchFloats().
  float* Scratch(int32_t lane) const {
    return reinterpret_cast<float*>(buffer_->data() + features_bytes_) + lane * scratch_floats_;
  }

 private:
  static constexpr int64_t kChunk = 64;  // tokens one worker prepares at a time

  CpuTile(const ResidentWeights& resident, int64_t tokens, int32_t lanes);
  int64_t PlaneOffset(int32_t slot, int32_t head) const {
    return (int64_t{slot} * source_heads_ + head) * blocks_ * segment_bytes_;
  }
  void FillTables(const ResidentWeights& resident, std::span<const int64_t> positions,
                  base::WorkerPool& workers);
  void FillChunk(const ResidentWeights& resident, const TileSource& source,
                 const KernelSet& kernels, int32_t slot, int64_t chunk);

  const int64_t tokens_;
  const int32_t blocks_;
  const int64_t chunks_;
  const int32_t source_heads_;
  const int64_t segment_bytes_;
  const int64_t features_bytes_;
  const int64_t scratch_floats_;
  const uint64_t bytes_;
  std::shared_ptr<kv::TileBuffer> buffer_;
  std::vector<std::optional<rope::RopeTable>> tables_;  // [rotations][chunks]
};

// Target heads of one full-head unit.
int32_t UnitHeads(const Blocking& blocking);

}  // namespace kvbridge::device::cpu
