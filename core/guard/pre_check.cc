#include "core/guard/pre_check.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "core/guard/sample.h"
#include "core/model/compat.h"

namespace kvbridge::guard {
namespace {

using Answer = std::optional<Refusal>;

constexpr size_t kMaxRequestId = 128;
constexpr size_t kMaxTenant = 256;
constexpr size_t kSha256Digits = 64;

template <typename... Parts>
Refusal Refuse(Reason reason, const Parts&... parts) {
  return Fallback(reason, absl::StrCat(parts...));
}

Answer CheckWellFormed(const TransferSpec& spec) {
  const std::string& id = spec.request_id;
  if (id.empty() || id.size() > kMaxRequestId ||
      !std::all_of(id.begin(), id.end(), absl::ascii_isprint)) {
    return Refuse(Reason::kInvalidRequest, "request_id: expected 1 to ", kMaxRequestId,
                  " printable ASCII characters, got ", id.size(), " bytes");
  }
  if (spec.tenant.size() > kMaxTenant) {
    return Refuse(Reason::kInvalidRequest, "tenant: expected at most ", kMaxTenant, " bytes, got ",
                  spec.tenant.size());
  }
  if (!spec.token_ids_sha256.empty() && !IsSha256(spec.token_ids_sha256)) {
    return Refuse(Reason::kInvalidRequest, "source_selection.token_ids_sha256: expected ",
                  kSha256Digits, " lower-case hex digits, got ", spec.token_ids_sha256.size(),
                  " bytes");
  }
  if (spec.tokens < 1) {
    return Refuse(Reason::kInvalidRequest, "source_selection.tokens: expected 1 or more, got ",
                  spec.tokens);
  }
  if (!spec.position_list.empty() &&
      spec.position_list.size() != static_cast<size_t>(spec.tokens)) {
    return Refuse(Reason::kInvalidRequest, "source_selection.positions: expected ", spec.tokens,
                  " entries, one per token, got ", spec.position_list.size());
  }
  if (spec.key_state == KeyState::kUnspecified) {
    return Refuse(Reason::kInvalidRequest,
                  "source_selection.key_state: expected roped or unroped, got nothing");
  }
  const std::pair<absl::string_view, int64_t> counts[] = {
      {"prompt_tokens", spec.prompt_tokens},
      {"hops", spec.hops},
      {"limits.max_covered_tokens", spec.max_covered_tokens},
      {"source.rope.max_position", spec.source.rope.max_position},
      {"target.rope.max_position", spec.target.rope.max_position}};
  for (const auto& [field, count] : counts) {
    if (count < 0) {
      return Refuse(Reason::kInvalidRequest, field, ": expected 0 or more, got ", count);
    }
  }
  if (spec.first_token < 0 || (spec.first_token > 0 && spec.first_token >= spec.tokens)) {
    return Refuse(Reason::kInvalidRequest, "first_token: expected 0 or a token before ",
                  spec.tokens, ", got ", spec.first_token);
  }
  if (spec.first_token > 0 && spec.artifact_digest.empty()) {
    return Refuse(Reason::kInvalidRequest,
                  "artifact_digest: expected the digest of the artifact that mapped the tokens "
                  "before first_token, got nothing");
  }
  if (spec.max_latency.has_value() && *spec.max_latency < absl::ZeroDuration()) {
    return Refuse(Reason::kInvalidRequest, "limits.max_latency: expected 0 or more, got ",
                  absl::FormatDuration(*spec.max_latency));
  }
  return std::nullopt;
}

Answer CheckTime(const TransferSpec& spec, absl::Time now) {
  if (now >= spec.deadline) {
    return Refuse(Reason::kDeadlineExceeded, "the call's deadline passed before it began");
  }
  if (spec.max_latency == absl::ZeroDuration()) {
    return Refuse(Reason::kLatencyBudget, "limits.max_latency: a budget of 0 leaves no time");
  }
  return std::nullopt;
}

Refusal FromMismatch(const model::Mismatch& mismatch) {
  const bool shape = mismatch.kind == model::MismatchKind::kShape;
  return Refusal{mismatch.kind == model::MismatchKind::kUnsupported ? Outcome::kUnsupported
                                                                    : Outcome::kFallbackReprefill,
                 shape ? Reason::kShapeMismatch : Reason::kIncompatibleModel, mismatch.ToString()};
}

Answer CheckModels(const TransferSpec& spec, const PreCheckContext& context) {
  for (const auto& [claimed, path] :
       {std::pair(&spec.source, "source"), std::pair(&spec.target, "target")}) {
    if (!claimed->identity.modality_digest.empty()) {
      return Refusal{Outcome::kUnsupported, Reason::kIncompatibleModel,
                     absl::StrCat(path, ".identity.modality_digest: expected text only, got a ",
                                  "digest of other inputs")};
    }
  }
  if (auto found = model::FindMismatch(context.artifact_source, spec.source, "source")) {
    return FromMismatch(*found);
  }
  if (auto found = model::FindMismatch(context.artifact_target, spec.target, "target")) {
    return FromMismatch(*found);
  }
  // One cache must not hold the work of two mappers.
  if (!spec.artifact_digest.empty() && spec.artifact_digest != context.artifact_digest) {
    return Refuse(Reason::kArtifactUnavailable, "artifact_digest: expected the artifact in use, ",
                  context.artifact_digest, ", got another");
  }
  return std::nullopt;
}

Answer CheckRoute(const TransferSpec& spec, const RoutePolicy& policy,
                  const PreCheckContext& context) {
  if (spec.hops >= policy.max_hops) {
    return Refuse(Reason::kAppGate, "hops: expected a cache with fewer than ", policy.max_hops,
                  " maps behind it, got ", spec.hops);
  }
  if (policy.stage != RouteStage::kShadow && !context.proven && !policy.allow_unproven) {
    return Refuse(Reason::kUnprovenPair, "the artifact has no passing evidence");
  }
  if (policy.stage == RouteStage::kCanary) {
    const absl::StatusOr<bool> chosen = Sampled(policy.salt, spec.request_id, policy.canary_share);
    if (!chosen.ok()) return Refuse(Reason::kInternal, "canary: ", chosen.status().message());
    if (!*chosen) {
      return Refuse(Reason::kRouteDisabled, "the request is outside the canary share of ",
                    policy.canary_share);
    }
  }
  return std::nullopt;
}

// A sample of its own: with canary's, the requests that a small canary lets through would be the
// first that are drilled.
Answer CheckDrill(const TransferSpec& spec, const RoutePolicy& policy) {
  const absl::StatusOr<bool> chosen =
      Sampled(absl::StrCat(policy.salt, "/drill"), spec.request_id, policy.drill.share);
  if (!chosen.ok()) return Refuse(Reason::kInternal, "drill: ", chosen.status().message());
  if (!*chosen) return std::nullopt;
  Refusal no = Fallback(policy.drill.reason, policy.drill.Sentence());
  no.drill = true;
  return no;
}

}  // namespace

bool IsSha256(absl::string_view digest) {
  return digest.size() == kSha256Digits && std::all_of(digest.begin(), digest.end(), [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

int64_t CoveredTokens(const TransferSpec& spec, const RoutePolicy& policy) {
  const int64_t prompt = spec.prompt_tokens == 0 ? spec.tokens : spec.prompt_tokens;
  const int64_t tail = std::max({1, spec.native_tail, policy.native_tail});
  int64_t covered = std::min(spec.tokens, prompt - tail);
  for (const int64_t cap : {spec.max_covered_tokens, policy.max_covered_tokens}) {
    if (cap > 0) covered = std::min(covered, cap);
  }
  return std::max<int64_t>(0, covered);
}

std::variant<Admissible, Refusal> PreCheck(const TransferSpec& spec, const RoutePolicy& policy,
                                           const PreCheckContext& context) {
  if (Answer no = CheckWellFormed(spec)) return *std::move(no);
  if (policy.stage == RouteStage::kOff) {
    return Refuse(Reason::kRouteDisabled, "the route is off");
  }
  if (Answer no = CheckTime(spec, context.now)) return *std::move(no);
  if (spec.tokens > context.max_tokens) {
    return Refuse(Reason::kTokenLimit, "source_selection.tokens: expected at most ",
                  context.max_tokens, ", got ", spec.tokens);
  }
  if (Answer no = CheckModels(spec, context)) return *std::move(no);
  if (Answer no = CheckRoute(spec, policy, context)) return *std::move(no);

  Admissible result;
  result.covered_tokens = CoveredTokens(spec, policy);
  const int64_t mapped = std::max<int64_t>(0, result.covered_tokens - spec.first_token);
  if (mapped < policy.min_covered_tokens) {
    return Refuse(Reason::kNotWorthIt, "covered tokens: expected at least ",
                  policy.min_covered_tokens, ", got ", mapped,
                  "; the target computes the end of the prompt itself");
  }
  if (Answer no = CheckDrill(spec, policy)) return *std::move(no);
  result.publish = policy.stage != RouteStage::kShadow;
  const absl::StatusOr<bool> shadow = Sampled(policy.salt, spec.request_id, policy.shadow_rate);
  if (!shadow.ok()) return Refuse(Reason::kInternal, "shadow: ", shadow.status().message());
  result.shadow_selected = *shadow;
  return result;
}

}  // namespace kvbridge::guard
