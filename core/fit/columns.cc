#include "core/fit/columns.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/fit/dense.h"

namespace kvbridge::fit {
namespace {

// Below these a column's variance is rounding: of its mean square, and of what the others of its
// block leave of it.
constexpr double kConstant = 1e-12;
constexpr double kDependent = 1e-10;

ColumnFlaw Where(const ColumnBlock& block, int64_t column, int32_t head_dim, Flaw flaw) {
  const int64_t offset = column - block.begin;
  return {.component = block.component,
          .layer = block.layer,
          .head = block.head >= 0 ? block.head : static_cast<int32_t>(offset / head_dim),
          .dim = static_cast<int32_t>(offset % head_dim),
          .flaw = flaw};
}

bool Finite(const SplitMoments& split, int64_t features, int64_t column) {
  return split.rows == 0 || (std::isfinite(split.mean_x[column]) &&
                             std::isfinite(split.gram[column * features + column]));
}

bool Constant(const SplitMoments& split, int64_t features, int64_t column) {
  const double variance = split.gram[column * features + column];
  const double mean = split.mean_x[column];
  return variance <= kConstant * (variance + split.weight * mean * mean);
}

absl::Status CheckTargets(const MomentGroup& group, const SplitMoments& split, int32_t head_dim) {
  if (split.rows == 0) return absl::OkStatus();
  for (const ColumnBlock& block : group.targets) {
    for (int64_t c = block.begin; c < block.begin + block.width; ++c) {
      if (std::isfinite(split.mean_y[c]) && std::isfinite(split.target_ss[c])) continue;
      const ColumnFlaw at = Where(block, c, head_dim, Flaw::kNotFinite);
      return absl::InvalidArgumentError(
          absl::StrCat("moments: target ", kv::Name(at.component), " layer ", at.layer, " head ",
                       at.head, " dim ", at.dim, ": expected finite sums, got NaN or infinity"));
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> LiveColumns(const ColumnBlock& block, const std::vector<uint8_t>& dead) {
  std::vector<int64_t> live;
  for (int64_t c = block.begin; c < block.begin + block.width; ++c) {
    if (dead[c] == 0) live.push_back(c);
  }
  return live;
}

std::vector<int64_t> Collinear(const MomentGroup& group, const std::vector<int64_t>& columns) {
  const int64_t n = static_cast<int64_t>(columns.size());
  if (n < 2 || group.fit.rows <= n) return {};
  const auto gram = [&](int64_t a, int64_t b) {
    return group.fit.gram[columns[a] * group.feature_columns + columns[b]];
  };
  Matrix correlation(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      correlation.row(i)[j] = gram(i, j) / std::sqrt(gram(i, i) * gram(j, j));
    }
  }
  std::vector<int64_t> dependent = DependentColumns(correlation, kDependent);
  for (int64_t& column : dependent) column = columns[column];
  return dependent;
}

}  // namespace

absl::string_view Name(Flaw flaw) {
  switch (flaw) {
    case Flaw::kZeroVariance:
      return "zero_variance";
    case Flaw::kNotFinite:
      return "not_finite";
    case Flaw::kCollinear:
      return "collinear";
  }
  return "unknown";
}

absl::StatusOr<ColumnAudit> AuditColumns(const Moments& moments) {
  ColumnAudit audit;
  for (const MomentGroup& group : moments.groups) {
    if (group.fit.rows < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("moments: rows to fit on: expected at least 2, got ", group.fit.rows));
    }
    for (const SplitMoments* split : {&group.fit, &group.held_out}) {
      KVB_RETURN_IF_ERROR(CheckTargets(group, *split, moments.target.geometry.head_dim));
    }
    const int32_t head_dim = moments.source.geometry.head_dim;
    const int64_t p = group.feature_columns;
    std::vector<uint8_t>& dead = audit.dead.emplace_back(static_cast<size_t>(p));
    for (const ColumnBlock& block : group.features) {
      for (int64_t c = block.begin; c < block.begin + block.width; ++c) {
        const bool finite = Finite(group.fit, p, c) && Finite(group.held_out, p, c);
        if (finite && !Constant(group.fit, p, c)) continue;
        dead[c] = 1;
        audit.flaws.push_back(
            Where(block, c, head_dim, finite ? Flaw::kZeroVariance : Flaw::kNotFinite));
      }
      for (int64_t c : Collinear(group, LiveColumns(block, dead))) {
        audit.flaws.push_back(Where(block, c, head_dim, Flaw::kCollinear));
      }
    }
  }
  // Weighted moments hold a source column once for each of their groups.
  std::sort(audit.flaws.begin(), audit.flaws.end());
  audit.flaws.erase(std::unique(audit.flaws.begin(), audit.flaws.end()), audit.flaws.end());
  return audit;
}

}  // namespace kvbridge::fit
