// What another kvbridged says, in core's words: the rest of convert.h.
#include "server/convert.h"

namespace kvbridge::server {

guard::Outcome FromProto(v1::Outcome outcome) {
  switch (outcome) {
    case v1::OUTCOME_APPLIED:
      return guard::Outcome::kApplied;
    case v1::OUTCOME_UNSUPPORTED:
      return guard::Outcome::kUnsupported;
    default:
      return guard::Outcome::kFallbackReprefill;
  }
}

// A newer peer's is told as internal.
guard::Reason FromProto(v1::Reason reason) {
  return v1::Reason_IsValid(reason) ? static_cast<guard::Reason>(reason) : guard::Reason::kInternal;
}

engine::Decision FromProto(const v1::Decision& decision) {
  engine::Decision out;
  out.outcome = FromProto(decision.outcome());
  out.reason = FromProto(decision.reason());
  out.detail = decision.detail();
  out.covered_tokens = decision.covered_tokens();
  out.artifact_digest = decision.artifact_digest();
  out.hops = decision.hops();
  out.approximate = decision.approximate();
  out.salt = decision.salt();
  for (size_t i = 0; i < engine::kStageCount; ++i) {
    for (const v1::StageTime& stage : decision.stages()) {
      if (stage.stage() != engine::Name(static_cast<engine::Stage>(i))) continue;
      out.stages[i] = absl::Seconds(stage.seconds());
    }
  }
  out.bytes_in = decision.bytes_in();
  out.bytes_out = decision.bytes_out();
  out.max_abs = decision.max_abs();
  out.saturated_elements = decision.saturated_elements();
  out.shadow_selected = decision.shadow_selected();
  out.dirty_pages.assign(decision.dirty_pages().begin(), decision.dirty_pages().end());
  out.token_ids_sha256 = decision.token_ids_sha256();
  out.route = decision.route();
  return out;
}

guard::Refusal FromProto(const v1::SourceFailed& failed) {
  guard::Refusal refusal = guard::Fallback(FromProto(failed.reason()), failed.detail());
  if (failed.outcome() == v1::OUTCOME_UNSUPPORTED) refusal.outcome = guard::Outcome::kUnsupported;
  return refusal;
}

}  // namespace kvbridge::server
