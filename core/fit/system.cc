#include "core/fit/system.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::fit {
namespace {

using kv::Component;

// The columns of (layer, component, head), head -1 = all heads, if the blocks hold them side by
// side.
std::optional<Run> FindRun(const std::vector<ColumnBlock>& blocks, int32_t layer, Component c,
                           int32_t head, const model::KvGeometry& geometry) {
  const int64_t width = head < 0 ? geometry.row() : geometry.head_dim;
  Run run{.begin = -1, .width = 0};
  for (const ColumnBlock& block : blocks) {
    if (block.layer != layer || block.component != c) continue;
    if (head >= 0 && block.head < 0) {
      return Run{block.begin + head * int64_t{geometry.head_dim}, width};
    }
    if (head >= 0 && block.head != head) continue;
    if (run.begin < 0) run.begin = block.begin;
    if (block.begin != run.begin + run.width) return std::nullopt;
    run.width += block.width;
  }
  if (run.width != width) return std::nullopt;
  return run;
}

std::optional<Unit> FindUnit(const Moments& moments, const ColumnAudit& audit, int32_t target_layer,
                             Component c, int32_t target_head, int32_t source_head) {
  for (size_t g = 0; g < moments.groups.size(); ++g) {
    const MomentGroup& group = moments.groups[g];
    const auto targets =
        FindRun(group.targets, target_layer, c, target_head, moments.target.geometry);
    if (!targets) continue;
    Unit unit{.group = &group, .dead = &audit.dead[g], .head = target_head, .targets = *targets};
    const model::KvGeometry& source = moments.source.geometry;
    for (Component of : {c, c == Component::kKey ? Component::kValue : Component::kKey}) {
      for (int32_t layer = 0; layer < source.layers; ++layer) {
        const auto run = FindRun(group.features, layer, of, source_head, source);
        if (run) unit.features.push_back(*run);
      }
    }
    const auto found = static_cast<int32_t>(unit.features.size());
    if (found == source.layers || found == 2 * source.layers) return unit;
  }
  return std::nullopt;
}

const SplitMoments& Of(const MomentGroup& group, RowSet rows) {
  return rows == RowSet::kHeldOut ? group.held_out : group.fit;
}

int64_t TotalWidth(std::span<const Run> runs) {
  int64_t width = 0;
  for (const Run& run : runs) width += run.width;
  return width;
}

// Copies the runs of one row side by side.
void CopyRuns(const double* row, std::span<const Run> runs, double* to) {
  for (const Run& run : runs) to = std::copy_n(row + run.begin, run.width, to);
}

// Columns of the system that are dead in the group.
std::vector<int64_t> DeadColumns(const std::vector<uint8_t>& dead, std::span<const Run> runs) {
  std::vector<int64_t> columns;
  int64_t at = 0;
  for (const Run& run : runs) {
    for (int64_t i = 0; i < run.width; ++i, ++at) {
      if (dead[run.begin + i] != 0) columns.push_back(at);
    }
  }
  return columns;
}

// One split's sub-block.
System Cut(const MomentGroup& group, const std::vector<uint8_t>& dead,
           std::span<const Run> features, std::span<const Run> targets, const SplitMoments& split) {
  const int64_t p = TotalWidth(features);
  const int64_t q = TotalWidth(targets);
  System out{.rows = split.rows, .weight = split.weight};
  out.mean_x.resize(static_cast<size_t>(p));
  out.mean_y.resize(static_cast<size_t>(q));
  out.target_ss.resize(static_cast<size_t>(q));
  out.gram = Matrix(p, p);
  out.cross = Matrix(p, q);
  CopyRuns(split.mean_x.data(), features, out.mean_x.data());
  CopyRuns(split.mean_y.data(), targets, out.mean_y.data());
  CopyRuns(split.target_ss.data(), targets, out.target_ss.data());
  int64_t at = 0;
  for (const Run& run : features) {
    for (int64_t row = run.begin; row < run.begin + run.width; ++row, ++at) {
      CopyRuns(split.gram.data() + row * group.feature_columns, features, out.gram.row(at));
      CopyRuns(split.cross.data() + row * group.target_columns, targets, out.cross.row(at));
    }
  }
  for (int64_t column : DeadColumns(dead, features)) {
    out.mean_x[column] = 0;
    std::fill_n(out.gram.row(column), p, 0.0);
    std::fill_n(out.cross.row(column), q, 0.0);
    for (int64_t i = 0; i < p; ++i) out.gram.row(i)[column] = 0;
  }
  return out;
}

// Adds `other` to `into`: Chan, Golub, LeVeque 1983.
void Merge(System& into, const System& other) {
  if (other.rows == 0) return;
  const double total = into.weight + other.weight;
  const double factor = into.weight * other.weight / total;
  const auto deltas = [](const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> delta(a.size());
    for (size_t i = 0; i < a.size(); ++i) delta[i] = b[i] - a[i];
    return delta;
  };
  const std::vector<double> dx = deltas(into.mean_x, other.mean_x);
  const std::vector<double> dy = deltas(into.mean_y, other.mean_y);
  for (size_t i = 0; i < dx.size(); ++i) {
    double* gram = into.gram.row(i);
    double* cross = into.cross.row(i);
    for (size_t j = 0; j < dx.size(); ++j) {
      gram[j] += other.gram.row(i)[j] + factor * dx[i] * dx[j];
    }
    for (size_t j = 0; j < dy.size(); ++j) {
      cross[j] += other.cross.row(i)[j] + factor * dx[i] * dy[j];
    }
    into.mean_x[i] += dx[i] * other.weight / total;
  }
  for (size_t j = 0; j < dy.size(); ++j) {
    into.target_ss[j] += other.target_ss[j] + factor * dy[j] * dy[j];
    into.mean_y[j] += dy[j] * other.weight / total;
  }
  into.rows += other.rows;
  into.weight = total;
}

}  // namespace

absl::StatusOr<std::vector<Unit>> UnitsFor(const Moments& moments, const ColumnAudit& audit,
                                           int32_t target_layer, Component component,
                                           mapper::Support support) {
  const bool full = support == mapper::Support::kFull;
  if (full) {
    if (auto unit = FindUnit(moments, audit, target_layer, component, -1, -1)) {
      return std::vector<Unit>{*std::move(unit)};
    }
  } else if (moments.source.geometry.kv_heads != moments.target.geometry.kv_heads) {
    return absl::FailedPreconditionError(absl::StrCat(
        "support head_local: expected equal head counts, got ", moments.source.geometry.kv_heads,
        " source heads and ", moments.target.geometry.kv_heads, " target heads"));
  }
  std::vector<Unit> units;
  for (int32_t head = 0; head < moments.target.geometry.kv_heads; ++head) {
    auto unit = FindUnit(moments, audit, target_layer, component, head, full ? -1 : head);
    if (!unit) {
      return absl::FailedPreconditionError(absl::StrCat(
          "support ", mapper::Name(support), ": expected moments that hold ",
          full ? "every source head" : "the same source head", " for target ", kv::Name(component),
          " layer ", target_layer, ", got layout ", Name(moments.layout)));
    }
    units.push_back(*std::move(unit));
  }
  return units;
}

System Gather(const MomentGroup& group, const std::vector<uint8_t>& dead,
              std::span<const Run> features, std::span<const Run> targets, RowSet rows) {
  System system = Cut(group, dead, features, targets, Of(group, rows));
  if (rows == RowSet::kBoth && group.held_out.rows > 0) {
    Merge(system, Cut(group, dead, features, targets, group.held_out));
  }
  return system;
}

System Gather(const Unit& unit, std::span<const int32_t> sources, RowSet rows) {
  std::vector<Run> features;
  for (int32_t layer : sources) features.push_back(unit.features[layer]);
  return Gather(*unit.group, *unit.dead, features, {&unit.targets, 1}, rows);
}

std::vector<double> ResidualSums(const System& system, const Matrix& weight,
                                 std::span<const double> bias) {
  const Matrix product = MultiplySymmetric(system.gram, weight);
  std::vector<double> sums = system.target_ss;
  std::vector<double> shift = BiasOf(system, weight);
  for (int64_t i = 0; i < weight.rows; ++i) {
    const double* w = weight.row(i);
    const double* cross = system.cross.row(i);
    const double* gram = product.row(i);
    for (int64_t j = 0; j < weight.cols; ++j) sums[j] += w[j] * (gram[j] - 2 * cross[j]);
  }
  for (size_t j = 0; j < sums.size(); ++j) {
    shift[j] -= bias[j];
    sums[j] += system.weight * shift[j] * shift[j];
  }
  return sums;
}

double RSquared(double residual_sum, double target_ss) {
  constexpr double kNothing = 1e-300;
  if (target_ss <= kNothing) return residual_sum <= kNothing ? 1 : 0;
  return 1 - residual_sum / target_ss;
}

std::vector<double> BiasOf(const System& system, const Matrix& weight) {
  std::vector<double> bias = system.mean_y;
  for (int64_t i = 0; i < weight.rows; ++i) {
    for (int64_t j = 0; j < weight.cols; ++j) bias[j] -= system.mean_x[i] * weight.row(i)[j];
  }
  return bias;
}

}  // namespace kvbridge::fit
