#include "core/plan/transfer_plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/guard/pre_check.h"

namespace kvbridge::plan {
namespace {

using guard::Reason;

Estimate Derived(std::optional<double> value) {
  return value.has_value() ? Estimate{value, Provenance::kDerived} : Estimate{};
}

absl::Status Check(const TransferPlanInput& in) {
  if (in.prompt_tokens < 1 || in.prompt_tokens > int64_t{1} << 40) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt_tokens: expected 1 to 2^40, got ", in.prompt_tokens));
  }
  const double rate = in.prefill_tokens_per_second;
  if (!(rate >= 0) || std::isinf(rate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefill_tokens_per_second: expected a finite number, 0 or more, got ", rate));
  }
  return absl::OkStatus();
}

// What the pre-checks would say of any request of this length, before its models are known.
std::pair<Reason, std::string> WhyNotServed(const TransferPlanInput& in,
                                            const guard::RoutePolicy& policy, int64_t covered) {
  if (policy.stage == guard::RouteStage::kOff || policy.stage == guard::RouteStage::kShadow) {
    return {Reason::kRouteDisabled, absl::StrCat("the route is in stage ", Name(policy.stage))};
  }
  if (!in.proven && !policy.allow_unproven) {
    return {Reason::kUnprovenPair, "the artifact has no passing evidence"};
  }
  if (covered < policy.min_covered_tokens) {
    return {Reason::kNotWorthIt, absl::StrCat("covered tokens: expected at least ",
                                              policy.min_covered_tokens, ", got ", covered)};
  }
  return {Reason::kNone, ""};
}

// Seconds that one covered token costs and saves, where known.
struct Rates {
  std::optional<double> move;
  std::optional<double> total;
  std::optional<double> prefill;
};

Rates PerToken(const TransferPlanInput& in, const mapper::Mapper& mapper) {
  Rates rates;
  if (in.ingress_seconds_per_byte.has_value() && in.egress_seconds_per_byte.has_value()) {
    rates.move = *in.ingress_seconds_per_byte * mapper.source.geometry.token_bytes() +
                 *in.egress_seconds_per_byte * mapper.target.geometry.token_bytes();
  }
  if (rates.move.has_value() && in.map_seconds_per_token.has_value()) {
    rates.total = *rates.move + *in.map_seconds_per_token;
  }
  if (in.prefill_tokens_per_second > 0) rates.prefill = 1 / in.prefill_tokens_per_second;
  return rates;
}

// The shortest prompt N whose covered tokens c satisfy fixed + c * total < c * prefill, caps aside.
Estimate BreakEven(const TransferPlanInput& in, const guard::RoutePolicy& policy,
                   const Rates& rates) {
  if (!rates.total.has_value() || !rates.prefill.has_value()) return {};
  const double gain = *rates.prefill - *rates.total;
  if (gain <= 0) return {std::nullopt, Provenance::kDerived};
  const double covered = std::max(std::floor(in.fixed_seconds / gain) + 1,
                                  static_cast<double>(policy.min_covered_tokens));
  return Derived(covered + std::max({1, in.native_tail, policy.native_tail}));
}

}  // namespace

absl::string_view Name(Provenance provenance) {
  constexpr absl::string_view kNames[] = {"unmeasured", "derived", "measured"};
  return kNames[static_cast<size_t>(provenance)];
}

absl::StatusOr<TransferPlan> MakeTransferPlan(const TransferPlanInput& in,
                                              const mapper::Mapper& mapper,
                                              const guard::RoutePolicy& policy) {
  KVB_RETURN_IF_ERROR(Check(in));
  guard::TransferSpec spec;
  spec.tokens = in.prompt_tokens;
  spec.native_tail = in.native_tail;

  TransferPlan plan;
  plan.covered_tokens = guard::CoveredTokens(spec, policy);
  const auto covered = static_cast<double>(plan.covered_tokens);
  plan.bytes_in = plan.covered_tokens * mapper.source.geometry.token_bytes();
  plan.bytes_out = plan.covered_tokens * mapper.target.geometry.token_bytes();
  plan.map_flops = covered * mapper.flops_per_token();

  const Rates rates = PerToken(in, mapper);
  const auto scaled = [&](std::optional<double> per_token, double fixed) -> std::optional<double> {
    if (!per_token.has_value()) return std::nullopt;
    return fixed + covered * *per_token;
  };
  plan.map_seconds = Derived(scaled(in.map_seconds_per_token, 0));
  plan.move_seconds = Derived(scaled(rates.move, 0));
  plan.total_seconds = Derived(scaled(rates.total, in.fixed_seconds));
  plan.prefill_seconds = Derived(scaled(rates.prefill, 0));
  plan.break_even_tokens = BreakEven(in, policy, rates);

  std::tie(plan.reason, plan.detail) = WhyNotServed(in, policy, plan.covered_tokens);
  if (plan.reason == Reason::kNone && rates.total.has_value() && rates.prefill.has_value() &&
      *plan.total_seconds.value >= *plan.prefill_seconds.value) {
    plan.reason = Reason::kNotWorthIt;
    plan.detail = absl::StrCat("prefilling ", plan.covered_tokens, " tokens takes ",
                               *plan.prefill_seconds.value, " s, the transfer ",
                               *plan.total_seconds.value, " s");
  }
  plan.worth_it = plan.reason == Reason::kNone;
  return plan;
}

}  // namespace kvbridge::plan
