#include "core/guard/reason.h"

#include <cstddef>
#include <iterator>

namespace kvbridge::guard {
namespace {

struct ReasonInfo {
  absl::string_view name;
  ReasonClass cls;
};

// Indexed by Reason.
constexpr ReasonInfo kReasons[] = {
    {"none", ReasonClass::kNone},
    {"invalid_request", ReasonClass::kClient},
    {"incompatible_model", ReasonClass::kClient},
    {"shape_mismatch", ReasonClass::kClient},
    {"batch_limit", ReasonClass::kPolicy},
    {"token_limit", ReasonClass::kPolicy},
    {"app_gate", ReasonClass::kPolicy},
    {"route_disabled", ReasonClass::kPolicy},
    {"not_worth_it", ReasonClass::kPolicy},
    {"quality_probe", ReasonClass::kQuality},
    {"non_finite", ReasonClass::kQuality},
    {"magnitude_bound", ReasonClass::kQuality},
    {"unproven_pair", ReasonClass::kQuality},
    {"latency_budget", ReasonClass::kCapacity},
    {"deadline_exceeded", ReasonClass::kCapacity},
    {"overload", ReasonClass::kCapacity},
    {"device_oom", ReasonClass::kCapacity},
    {"draining", ReasonClass::kCapacity},
    {"artifact_unavailable", ReasonClass::kInfra},
    {"artifact_integrity", ReasonClass::kInfra},
    {"transport", ReasonClass::kInfra},
    {"device_error", ReasonClass::kInfra},
    {"internal", ReasonClass::kInternal},
    {"cancelled", ReasonClass::kNone},
    {"unreachable", ReasonClass::kInfra},
    {"circuit_open", ReasonClass::kInfra},
};
static_assert(std::size(kReasons) == static_cast<size_t>(Reason::kCircuitOpen) + 1);

constexpr absl::string_view kOutcomes[] = {"applied", "fallback_reprefill", "unsupported"};
constexpr absl::string_view kClasses[] = {"none",     "client", "policy",  "quality",
                                          "capacity", "infra",  "internal"};

}  // namespace

absl::string_view Name(Outcome outcome) { return kOutcomes[static_cast<size_t>(outcome)]; }
absl::string_view Name(Reason reason) { return kReasons[static_cast<size_t>(reason)].name; }
absl::string_view Name(ReasonClass cls) { return kClasses[static_cast<size_t>(cls)]; }
ReasonClass ClassOf(Reason reason) { return kReasons[static_cast<size_t>(reason)].cls; }

}  // namespace kvbridge::guard
