// Rows of a folder's sequences, a block at a time, in an order that depends on the folder alone:
// by sequence id, then position. Blocks are full (kBlockRows) but for a split's last.
//
// Thread contract: one thread; reading is spread over the pool.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/base/worker_pool.h"
#include "core/fit/accumulate_plan.h"
#include "core/fit/shard_folder.h"
#include "core/fit/sweep_sums.h"

namespace kvbridge::fit {

// Rows [begin, end) of one piece.
struct Slice {
  const Piece* piece = nullptr;
  float weight = 1;  // of each row
  int64_t begin = 0;
  int64_t end = 0;
};
using Block = std::vector<Slice>;

class BlockReader {
 public:
  // `folder` and `pool` outlive it. `strip` un-rotates keys.
  BlockReader(const ShardFolder& folder, int64_t token_stride, bool strip, base::WorkerPool* pool)
      : folder_(folder), options_{folder.specs, token_stride}, strip_(strip), pool_(pool) {}

  std::vector<Block> BlocksOf(Split split) const;

  // Reads the sweep's columns of `block` into `sums`; returns the rows' weights. DATA_LOSS when a
  // file is not what it was when the folder was opened.
  absl::StatusOr<std::vector<float>> Read(const Block& block, const Sweep& sweep,
                                          const std::vector<ColumnTile>& columns,
                                          SweepSums* sums) const;

  // Asks the kernel to read `block`'s files ahead.
  void Prefetch(const Block& block) const;

  // INVALID_ARGUMENT saying which shard, tensor, layer, head and row `found` is.
  absl::Status Describe(const Block& block, const Sweep& sweep,
                        const std::vector<ColumnTile>& columns,
                        const SweepSums::NotFinite& found) const;

 private:
  absl::Status ReadSlice(const Slice& slice, int64_t at, const Sweep& sweep,
                         const std::vector<ColumnTile>& columns, SweepSums* sums) const;

  const ShardFolder& folder_;
  const ShardOptions options_;
  const bool strip_;
  base::WorkerPool* const pool_;
};

}  // namespace kvbridge::fit
