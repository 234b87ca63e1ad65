#include "core/engine/decision.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"

namespace kvbridge::engine {

absl::string_view Name(Stage stage) {
  constexpr absl::string_view kNames[kStageCount] = {"queue", "ingress", "strip_rope",
                                                     "map",   "guard",   "egress"};
  return kNames[static_cast<size_t>(stage)];
}

Decision Refused(guard::Refusal refusal, const guard::TransferSpec& spec) {
  Decision decision;
  decision.outcome = refusal.outcome;
  decision.reason = refusal.reason;
  decision.detail = std::move(refusal.detail);
  decision.token_ids_sha256 = spec.token_ids_sha256;
  decision.route = spec.route;
  decision.drill = refusal.drill;
  return decision;
}

guard::Refusal WhyOf(const Decision& decision) {
  return {decision.outcome, decision.reason, decision.detail, decision.drill};
}

absl::StatusOr<std::string> CacheSalt(absl::string_view artifact_digest,
                                      absl::string_view route_salt, int32_t hops) {
  KVB_ASSIGN_OR_RETURN(const std::string hex,
                       crypto::Sha256Hex(absl::StrCat("kvbridge-cache-salt-v1\n", artifact_digest,
                                                      "\n", route_salt, "\n", hops)));
  return absl::StrCat("kvb1-", absl::string_view(hex).substr(0, 32));
}

}  // namespace kvbridge::engine
