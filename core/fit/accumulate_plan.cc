#include "core/fit/accumulate_plan.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/fit/split_columns.h"

namespace kvbridge::fit {
namespace {

constexpr int64_t kTileColumns = 512;
// Per column: mean, sum of squares, and a block's shift, delta and residual (sweep_sums.h).
constexpr uint64_t kColumnBytes = 5 * sizeof(double);
// Per thread: a tile's FP32 products, and OpenBLAS's packed panels.
constexpr uint64_t kThreadBytes = kTileColumns * kTileColumns * sizeof(float) + 4 * base::kMiB;

void AddTiles(Role role, const std::vector<ColumnBlock>& blocks, const model::KvGeometry& geometry,
              std::vector<ColumnTile>* columns) {
  const std::vector<HeadColumns> heads = HeadsOf(blocks, geometry.kv_heads);
  const auto per_tile = static_cast<size_t>(std::max<int64_t>(1, kTileColumns / geometry.head_dim));
  for (size_t at = 0; at < heads.size(); at += per_tile) {
    const size_t end = std::min(heads.size(), at + per_tile);
    columns->push_back({role,
                        static_cast<int64_t>(at) * geometry.head_dim,
                        static_cast<int64_t>(end - at) * geometry.head_dim,
                        {heads.begin() + at, heads.begin() + end}});
  }
}

// Gathers tiles into sweeps as long as they fit.
class Packer {
 public:
  Packer(size_t group, const std::vector<ColumnTile>& columns, uint64_t budget, bool amx)
      : group_(group), columns_(columns), budget_(budget), amx_(amx) {}

  // Column by column: neighbours share the column and most rows.
  std::vector<Sweep> Pack() {
    for (int32_t column = 0; column < static_cast<int32_t>(columns_.size()); ++column) {
      for (int32_t row = 0; row <= column; ++row) {
        if (columns_[row].role == Role::kTarget) break;
        Add({row, column});
      }
    }
    Close();
    return std::move(sweeps_);
  }

  uint64_t peak() const { return peak_; }

 private:
  uint64_t BytesWith(const Tile& tile) const {
    int64_t width = 0;
    std::set<int32_t> used = used_;
    used.insert({tile.row, tile.column});
    std::vector<int64_t> widths;
    for (const int32_t c : used) {
      widths.push_back(columns_[c].width);
      width += columns_[c].width;
    }
    const uint64_t rows = uint64_t{kBlockRows} * RowStride(width) * sizeof(float);
    const uint64_t split = amx_ ? SplitColumns::Bytes(widths, kBlockRows) : 0;
    return tile_bytes_ + TileBytes(tile) + rows + split + width * kColumnBytes;
  }
  uint64_t TileBytes(const Tile& tile) const {
    return columns_[tile.row].width * columns_[tile.column].width * sizeof(double);
  }

  void Add(const Tile& tile) {
    if (!tiles_.empty() && budget_ != 0 && BytesWith(tile) > budget_) Close();
    peak_ = std::max(peak_, BytesWith(tile));
    tile_bytes_ += TileBytes(tile);
    used_.insert({tile.row, tile.column});
    tiles_.push_back(tile);
  }

  void Close() {
    sweeps_.push_back({group_, std::move(tiles_), {used_.begin(), used_.end()}});
    tiles_.clear();
    used_.clear();
    tile_bytes_ = 0;
  }

  const size_t group_;
  const std::vector<ColumnTile>& columns_;
  const uint64_t budget_;  // 0 = none
  const bool amx_;
  std::vector<Sweep> sweeps_;
  std::vector<Tile> tiles_;
  std::set<int32_t> used_;
  uint64_t tile_bytes_ = 0;
  uint64_t peak_ = 0;
};

// Keys and values of both models, in columns: what a whole pass reads.
int64_t AllColumns(const SpecPair& specs) {
  int64_t columns = 0;
  for (const Role role : kRoles) {
    const model::KvGeometry& g = specs.of(role).geometry;
    columns += 2 * g.layers * g.row();
  }
  return columns;
}

}  // namespace

int64_t ColumnsOf(const Sweep& sweep, const std::vector<ColumnTile>& columns) {
  int64_t width = 0;
  for (const int32_t c : sweep.columns) width += columns[c].width;
  return width;
}

std::vector<int64_t> WidthsOf(const Sweep& sweep, const std::vector<ColumnTile>& columns) {
  std::vector<int64_t> widths;
  for (const int32_t c : sweep.columns) widths.push_back(columns[c].width);
  return widths;
}

// Off powers of two: rows a multiple of 4 KiB apart would share cache sets.
int64_t RowStride(int64_t columns) { return (columns + 15) / 16 * 16 + 16; }

absl::StatusOr<AccumulatePlan> PlanAccumulate(const ShardFolder& folder, Layout layout,
                                              const PlanLimits& limits) {
  AccumulatePlan plan;
  const SpecPair& specs = folder.specs;
  KVB_ASSIGN_OR_RETURN(plan.groups,
                       MakeGroups(layout, specs.source.geometry, specs.target.geometry));
  plan.data_bytes = folder.data_bytes;
  const uint64_t fixed = limits.baseline_bytes + folder.largest_file +
                         static_cast<uint64_t>(limits.threads) * kThreadBytes;
  // 1 byte where nothing is left: every tile is a sweep of its own, and the peak says what it took.
  const uint64_t budget = limits.memory_bytes == 0      ? 0
                          : limits.memory_bytes > fixed ? limits.memory_bytes - fixed
                                                        : 1;
  uint64_t peak = 0;
  int64_t columns_read = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    std::vector<ColumnTile>& columns = plan.columns.emplace_back();
    AddTiles(Role::kSource, plan.groups[g].features, specs.source.geometry, &columns);
    AddTiles(Role::kTarget, plan.groups[g].targets, specs.target.geometry, &columns);
    Packer packer(g, columns, budget, limits.amx);
    for (Sweep& sweep : packer.Pack()) {
      columns_read += ColumnsOf(sweep, columns);
      plan.sweeps.push_back(std::move(sweep));
    }
    peak = std::max(peak, packer.peak());
  }
  plan.peak_bytes = fixed + peak;
  plan.passes = static_cast<double>(columns_read) / static_cast<double>(AllColumns(specs));
  if (limits.memory_bytes != 0 && plan.peak_bytes > limits.memory_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: expected at least ", base::HumanBytes(plan.peak_bytes),
                     " for these models, got ", base::HumanBytes(limits.memory_bytes)));
  }
  return plan;
}

}  // namespace kvbridge::fit
