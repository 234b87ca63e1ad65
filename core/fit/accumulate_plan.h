// How an accumulation will run: which blocks of the moments are summed together, what that takes.
//
// A group's columns (features, then targets) are cut into *column tiles* of whole heads, about 512
// columns wide. A *tile* is the block of the gram or cross matrix that two of them span; only the
// gram's upper triangle is summed. A *sweep* goes over the rows of one split once and sums some
// tiles of one group in memory. Groups share no columns, so a sweep per group reads every number
// once: one pass over the data. When a group's tiles do not fit, it takes several sweeps, which
// read the columns they need again.
//
// Each number of the result is the same, bit for bit, however tiles are divided among sweeps,
// whatever the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/groups.h"
#include "core/fit/moments.h"
#include "core/fit/shard_folder.h"

namespace kvbridge::fit {

// Rows that are multiplied in FP32 before they are added up in FP64.
inline constexpr int64_t kBlockRows = 2048;

// A run of whole heads of a group's features or targets.
struct ColumnTile {
  Role role = Role::kSource;  // features are the source's, targets the target's
  int64_t begin = 0;          // column in the group's features or targets
  int64_t width = 0;
  std::vector<HeadColumns> heads;
};

// Indices of column tiles. `row` is a tile of features; `column` of features from `row` on (gram),
// or of targets (cross).
struct Tile {
  int32_t row = 0;
  int32_t column = 0;
};

struct Sweep {
  size_t group = 0;
  std::vector<Tile> tiles;
  std::vector<int32_t> columns;  // the column tiles it reads, ascending
};

struct AccumulatePlan {
  std::vector<MomentGroup> groups;
  std::vector<std::vector<ColumnTile>> columns;  // [groups]
  std::vector<Sweep> sweeps;                     // each is run for both splits
  uint64_t peak_bytes = 0;                       // resident set of the process at its largest
  uint64_t data_bytes = 0;                       // of the shards
  double passes = 0;                             // over them: 1 where every group fits
};

struct PlanLimits {
  uint64_t memory_bytes = 0;    // cap on peak_bytes; 0 = none
  uint64_t baseline_bytes = 0;  // what the process takes besides
  int threads = 1;
  bool amx = false;  // products on AMX (split_columns.h), which take more memory
};

// FAILED_PRECONDITION as MakeGroups; RESOURCE_EXHAUSTED, saying the least that would do, when the
// cap is too small for a single tile.
absl::StatusOr<AccumulatePlan> PlanAccumulate(const ShardFolder& folder, Layout layout,
                                              const PlanLimits& limits);

// Columns of a row buffer of `sweep`, the row stride in floats, and the widths of its tiles.
int64_t ColumnsOf(const Sweep& sweep, const std::vector<ColumnTile>& columns);
int64_t RowStride(int64_t columns);
std::vector<int64_t> WidthsOf(const Sweep& sweep, const std::vector<ColumnTile>& columns);

}  // namespace kvbridge::fit
