// What every mapped element must satisfy before anybody may see it.
#pragma once

#include <optional>

#include "core/device/backend.h"
#include "core/guard/reason.h"
#include "core/guard/route_policy.h"
#include "core/guard/transfer_spec.h"

namespace kvbridge::guard {

// non_finite for any NaN or infinity; magnitude_bound beyond policy.max_abs, and for any saturated
// element where overflow fails. A value equal to the bound passes.
std::optional<Refusal> PostCheck(const device::TileChecks& checks, const RoutePolicy& policy,
                                 OverflowPolicy overflow);

}  // namespace kvbridge::guard
