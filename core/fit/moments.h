// Second moments of a calibration set: all that selection, ridge solving and held-out choice need.
//
// A fit regresses target columns Y (un-rotated keys, values; one column per layer, head and dim) on
// source columns X. With weights w_t (1 unless stated) and centred rows,
//   gram = sum_t w_t (x_t - mean_x)^T (x_t - mean_x),  cross = sum_t w_t (x_t - mean_x)^T (y_t -
//   mean_y), target_ss[j] = sum_t w_t (y_tj - mean_yj)^2.
// Any choice of source layers is a sub-block of them, and the residual of any map W on the rows
// they came from is target_ss - 2 W.cross + W.gram.W: the data are read once. They merge exactly
// (Chan, Golub, LeVeque 1983), so shards add up in any order.
//
// Columns that are never regressed on each other share no block: a *group* is one set of features
// with the targets they explain. Full-head has two groups (K, V), head-local one per component and
// target head, joint one group where K and V of the source feed both.
//
// Two splits are kept beside each other: the rows that are fitted on, and the held-out rows that
// choose. Whole sequences go to one or the other.
//
// Thread contract: an immutable view; any thread may read while `storage` lives.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"

#include "core/kv/kv_view.h"
#include "core/model/model_spec.h"

namespace kvbridge::fit {

// A run of adjacent columns of a group.
struct ColumnBlock {
  int32_t layer = 0;
  kv::Component component = kv::Component::kKey;
  int32_t head = -1;  // -1 = every head of the layer, head-major
  int64_t begin = 0;  // first column in the group
  int64_t width = 0;  // head_dim, or kv_heads * head_dim
  friend bool operator==(const ColumnBlock&, const ColumnBlock&) = default;
};

// The moments of one group on one split; FP64, row-major, borrowed.
struct SplitMoments {
  int64_t rows = 0;
  double weight = 0;                  // sum of w_t; = rows where unweighted
  std::span<const double> mean_x;     // [features]
  std::span<const double> mean_y;     // [targets]
  std::span<const double> gram;       // [features, features], both triangles
  std::span<const double> cross;      // [features, targets]
  std::span<const double> target_ss;  // [targets]
};

struct MomentGroup {
  std::vector<ColumnBlock> features;  // ordered by begin: layer-major, then head
  std::vector<ColumnBlock> targets;
  int64_t feature_columns = 0;
  int64_t target_columns = 0;
  SplitMoments fit;
  SplitMoments held_out;  // rows == 0 where nothing was held out
};

enum class Layout : uint8_t {
  kFull,       // two groups: every source head feeds every target head
  kHeadLocal,  // 2 * kv_heads groups: source head h feeds target head h; equal head counts
  kJoint,      // one group: K and V of every source head feed K and V
};
absl::string_view Name(Layout layout);  // "full", "head_local", "joint"

struct Moments {
  model::ModelSpec source;
  model::ModelSpec target;
  bool strip_rope = true;  // false: keys as they are cached
  Layout layout = Layout::kFull;
  std::vector<MomentGroup> groups;
  std::shared_ptr<const void> storage;  // what the spans point into
};

}  // namespace kvbridge::fit
