// Regressions cut out of moments: which columns explain which, and their sub-blocks.
//
// Thread contract: pure functions; the moments must outlive every Unit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/columns.h"
#include "core/fit/dense.h"
#include "core/fit/moments.h"
#include "core/mapper/mapper.h"

namespace kvbridge::fit {

// Adjacent columns of a group.
struct Run {
  int64_t begin = 0;
  int64_t width = 0;
};

// Target columns that are regressed on the same features: all heads of one layer and component, or
// one head.
//
// A *source* is a number: s < source layers is the same component of source layer s; in joint
// moments s >= source layers is the other component of source layer s - source layers.
struct Unit {
  const MomentGroup* group = nullptr;
  const std::vector<uint8_t>* dead = nullptr;  // ColumnAudit of the group
  int32_t head = -1;                           // target head; -1 = all, head-major
  Run targets;
  std::vector<Run> features;  // [sources]: the columns that each adds
};

// The units that together make K or V of one target layer. FAILED_PRECONDITION where the moments
// hold no block for this support, naming layouts.
absl::StatusOr<std::vector<Unit>> UnitsFor(const Moments& moments, const ColumnAudit& audit,
                                           int32_t target_layer, kv::Component component,
                                           mapper::Support support);

enum class RowSet : uint8_t { kFit, kHeldOut, kBoth };

// The moments of one regression: centred sums as in moments.h, dead columns zeroed.
struct System {
  int64_t rows = 0;
  double weight = 0;
  std::vector<double> mean_x;     // [p]
  std::vector<double> mean_y;     // [q]
  Matrix gram;                    // [p, p]
  Matrix cross;                   // [p, q]
  std::vector<double> target_ss;  // [q]
};

// `features` in the order given, then `targets` in theirs. kBoth merges the splits (Chan).
System Gather(const MomentGroup& group, const std::vector<uint8_t>& dead,
              std::span<const Run> features, std::span<const Run> targets, RowSet rows);
// A unit's features of `sources`, in their order.
System Gather(const Unit& unit, std::span<const int32_t> sources, RowSet rows);

// Residual sum of squares of each target column on the rows of `system`, for any weights [p, q]
// and biases [q]: also where they were fitted on other rows, whose means differ.
std::vector<double> ResidualSums(const System& system, const Matrix& weight,
                                 std::span<const double> bias);
// 1 - residual / variance; of columns without variance 1 where they are met, else 0.
double RSquared(double residual_sum, double target_ss);
// mean_y - mean_x W.
std::vector<double> BiasOf(const System& system, const Matrix& weight);

}  // namespace kvbridge::fit
