// Is a transfer worth it? Exact sizes, and times from this machine's own measured rates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/guard/reason.h"
#include "core/guard/route_policy.h"
#include "core/mapper/mapper.h"

namespace kvbridge::plan {

enum class Provenance : uint8_t {
  kUnmeasured,  // no value
  kDerived,     // computed from measured or exact numbers
  kMeasured,    // on this machine, this run
  kStated,      // by the caller
};
absl::string_view Name(Provenance provenance);  // "unmeasured", "derived", "measured", "stated"

// "unmeasured" is not a number. A derived estimate without a value exists only for break-even: the
// transfer is slower at every length.
struct Estimate {
  std::optional<double> value;
  Provenance provenance = Provenance::kUnmeasured;

  friend bool operator==(const Estimate&, const Estimate&) = default;
};

struct TransferPlanInput {
  int64_t prompt_tokens = 0;  // N, at least 1
  int32_t native_tail = 1;    // the caller's; values below 1 mean 1
  double prefill_tokens_per_second =
      0;                // the caller's own rate of the target model; 0 = not stated
  bool proven = false;  // the artifact's evidence passes
  // Measured on this machine, e.g. engine::RateMeter; none = unmeasured.
  std::optional<double> map_seconds_per_token;
  std::optional<double> ingress_seconds_per_byte;
  std::optional<double> egress_seconds_per_byte;
};

struct TransferPlan {
  bool worth_it = false;
  guard::Reason reason = guard::Reason::kNone;  // why not
  std::string detail;  // one sentence for a person: why not, or what was not compared
  int64_t covered_tokens = 0;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  double map_flops = 0;
  Estimate map_seconds;
  Estimate move_seconds;
  Estimate total_seconds;    // queue excluded
  Estimate prefill_seconds;  // of the covered tokens, at the caller's rate
  // Shortest prompt for which the transfer is expected to be faster. What a transfer costs whatever
  // its length is not measured, hence not counted.
  Estimate break_even_tokens;
};

// Worth it: the route serves, and what is known of the transfer's time is below the prefill's.
// While moving the bytes is unmeasured the map's time is all that is known, and a lower bound;
// without a prefill rate nothing is compared. INVALID_ARGUMENT names a field out of range.
absl::StatusOr<TransferPlan> MakeTransferPlan(const TransferPlanInput& input,
                                              const mapper::Mapper& mapper,
                                              const guard::RoutePolicy& policy);

}  // namespace kvbridge::plan
