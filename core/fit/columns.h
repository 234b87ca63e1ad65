// Source columns that a regression cannot use as they are, found before anything is solved.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/fit/moments.h"

namespace kvbridge::fit {

enum class Flaw : uint8_t {
  kZeroVariance,  // constant: weight 0
  kNotFinite,     // NaN or infinity seen: weight 0
  kCollinear,     // a combination of other columns of its layer: left to the ridge
};
absl::string_view Name(Flaw flaw);  // "zero_variance", "not_finite", "collinear"

struct ColumnFlaw {
  kv::Component component = kv::Component::kKey;
  int32_t layer = 0;
  int32_t head = 0;
  int32_t dim = 0;
  Flaw flaw = Flaw::kZeroVariance;
  friend auto operator<=>(const ColumnFlaw&, const ColumnFlaw&) = default;
};

struct ColumnAudit {
  std::vector<ColumnFlaw> flaws;           // ascending, each once
  std::vector<std::vector<uint8_t>> dead;  // [groups][feature columns]: 1 = gets weight 0
};

// INVALID_ARGUMENT names a target column (layer, component, head, dim) that is not finite, or says
// that there are fewer than two rows to fit on. Collinearity is looked for inside each block of
// features, and only where there are more rows than columns.
absl::StatusOr<ColumnAudit> AuditColumns(const Moments& moments);

}  // namespace kvbridge::fit
