// What a route asks of every transfer: the operator's side of the pre-checks and post-checks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/guard/reason.h"

namespace kvbridge::guard {

enum class RouteStage : uint8_t {
  kOff,     // every transfer falls back with route_disabled
  kShadow,  // mapped and checked, never applied
  kCanary,  // the share `canary_share` of requests, by hash of salt and request id
  kLive,
};
absl::string_view Name(RouteStage stage);  // "off", "shadow", "canary", "live"

// A rehearsal: a share of the transfers that passed every pre-check falls back with one reason.
struct Drill {
  Reason reason = Reason::kNone;
  double share = 0;  // 0 to 1; 0 = no drill

  bool on() const { return share > 0; }
  std::string Sentence() const;  // "drill: 5 % of transfers fall back with overload"
  friend bool operator==(const Drill&, const Drill&) = default;
};

struct RoutePolicy {
  RouteStage stage = RouteStage::kLive;
  double canary_share = 0;                    // 0 to 1
  bool allow_unproven = false;                // serve without passing evidence past shadow
  std::optional<absl::Duration> max_latency;  // when the request has none
  double max_abs = 10000;                     // largest magnitude of a mapped element
  int64_t max_covered_tokens = 0;             // 0 = no limit
  int64_t min_covered_tokens = 1;             // below it a transfer is not worth it
  int32_t native_tail = 1;                    // tokens left to the target, at least 1
  int32_t max_hops = 1;                     // maps a cache may have been through, this one included
  double shadow_rate = 0;                   // share of requests whose callers prefill as well
  std::string salt = "kvbridge-shadow-v1";  // of the shadow, canary and drill samples
  Drill drill;

  friend bool operator==(const RoutePolicy&, const RoutePolicy&) = default;
};

// Every number in its range; NaN is in none. INVALID_ARGUMENT names the field, what was expected
// and what came. max_abs may be infinite: then only NaN and infinity are refused.
absl::Status Validate(const RoutePolicy& policy);

}  // namespace kvbridge::guard
