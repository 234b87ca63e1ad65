#include "core/guard/post_check.h"

#include "absl/strings/str_cat.h"

namespace kvbridge::guard {

std::optional<Refusal> PostCheck(const device::TileChecks& checks, const RoutePolicy& policy,
                                 OverflowPolicy overflow) {
  if (checks.non_finite > 0) {
    return Refusal{Outcome::kFallbackReprefill, Reason::kNonFinite,
                   absl::StrCat("mapped cache: expected finite elements, got ", checks.non_finite,
                                " NaN or infinite")};
  }
  if (!(checks.max_abs <= policy.max_abs)) {
    return Refusal{Outcome::kFallbackReprefill, Reason::kMagnitudeBound,
                   absl::StrCat("mapped cache: expected magnitudes of at most ", policy.max_abs,
                                ", got ", checks.max_abs)};
  }
  if (checks.saturated > 0 && overflow == OverflowPolicy::kFail) {
    return Refusal{Outcome::kFallbackReprefill, Reason::kMagnitudeBound,
                   absl::StrCat("mapped cache: ", checks.saturated,
                                " elements are beyond the range of the target's element type")};
  }
  return std::nullopt;
}

}  // namespace kvbridge::guard
