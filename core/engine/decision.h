// How a transfer ended, with all that a caller, an operator or an auditor needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/guard/reason.h"
#include "core/guard/transfer_spec.h"

namespace kvbridge::engine {

// Where a transfer's time goes. kIngress and kEgress are the plane's to add.
enum class Stage : uint8_t { kQueue, kIngress, kStripRope, kMap, kGuard, kEgress };
inline constexpr size_t kStageCount = 6;
absl::string_view Name(Stage stage);  // "queue", "ingress", "strip_rope", ...
using StageTimes = std::array<absl::Duration, kStageCount>;  // indexed by Stage, summed over tiles

struct Decision {
  guard::Outcome outcome = guard::Outcome::kFallbackReprefill;
  guard::Reason reason = guard::Reason::kInternal;  // kNone when applied
  std::string detail;                               // as guard::Refusal::detail
  int64_t covered_tokens = 0;   // [0, covered_tokens) of the selection; 0 unless applied
  std::string artifact_digest;  // empty when no artifact was used
  int32_t hops = 0;             // the request's + 1; 0 unless applied
  bool approximate = false;     // true when applied: never satisfies an exact prefix lookup
  std::string salt;             // see CacheSalt; empty unless applied
  StageTimes stages{};
  int64_t bytes_in = 0;   // payload received
  int64_t bytes_out = 0;  // payload sent
  float max_abs = 0;      // largest magnitude of a mapped element
  int64_t saturated_elements = 0;
  bool shadow_selected = false;
  std::vector<int32_t> dirty_pages;  // ascending; target pages a failed transfer may have written
  std::string token_ids_sha256;      // the request's
  std::string route;                 // the request's
  bool drill = false;                // a fallback that was rehearsed

  bool applied() const { return outcome == guard::Outcome::kApplied; }
};

// The decision on a transfer that did not begin.
Decision Refused(guard::Refusal refusal, const guard::TransferSpec& spec);

// Why it was not applied, for somebody else's decision on the same transfer.
guard::Refusal WhyOf(const Decision& decision);

// What a prefix cache must mix into the keys of blocks made from a mapped cache, so that they never
// answer for the target's own, for another mapper's or for another hop's: "kvb1-" and the first 32
// hex digits of SHA-256("kvbridge-cache-salt-v1\n" digest "\n" route_salt "\n" hops).
absl::StatusOr<std::string> CacheSalt(absl::string_view artifact_digest,
                                      absl::string_view route_salt, int32_t hops);

}  // namespace kvbridge::engine
