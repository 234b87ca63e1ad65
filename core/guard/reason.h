// The closed list of outcomes and reasons. A transfer ends with exactly one outcome; every outcome
// but kApplied has exactly one reason. The names are wire words and metric labels: never renamed.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace kvbridge::guard {

enum class Outcome : uint8_t { kApplied, kFallbackReprefill, kUnsupported };

// Values are the wire's (kvbridge.v1.Reason).
enum class Reason : uint8_t {
  kNone = 0,
  kInvalidRequest = 1,
  kIncompatibleModel = 2,
  kShapeMismatch = 3,
  kBatchLimit = 4,
  kTokenLimit = 5,
  kAppGate = 6,
  kRouteDisabled = 7,
  kNotWorthIt = 8,
  kQualityProbe = 9,
  kNonFinite = 10,
  kMagnitudeBound = 11,
  kUnprovenPair = 12,
  kLatencyBudget = 13,
  kDeadlineExceeded = 14,
  kOverload = 15,
  kDeviceOom = 16,
  kDraining = 17,
  kArtifactUnavailable = 18,
  kArtifactIntegrity = 19,
  kTransport = 20,
  kDeviceError = 21,
  kInternal = 22,
  kCancelled = 23,  // the caller went away; never leaves the server, counted as outcome "cancelled"
  kUnreachable = 24,  // said by clients only
  kCircuitOpen = 25,  // said by clients only
};

enum class ReasonClass : uint8_t {
  kNone,
  kClient,
  kPolicy,
  kQuality,
  kCapacity,
  kInfra,
  kInternal
};

absl::string_view Name(Outcome outcome);  // "applied", "fallback_reprefill", "unsupported"
absl::string_view Name(Reason reason);    // "latency_budget", ...
absl::string_view Name(ReasonClass cls);  // "capacity", ...
ReasonClass ClassOf(Reason reason);

// Why a transfer may not go on. `detail` is one sentence for a person: field, expected, got. It
// never holds payload, token ids, tenants or paths.
struct Refusal {
  Outcome outcome = Outcome::kFallbackReprefill;
  Reason reason = Reason::kInternal;
  std::string detail;
  bool drill = false;  // rehearsed: nobody is to blame
};

inline Refusal Fallback(Reason reason, absl::string_view detail) {
  return {Outcome::kFallbackReprefill, reason, std::string(detail)};
}

}  // namespace kvbridge::guard
