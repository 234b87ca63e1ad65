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
  std::optional<double> at_least;  // the total, or the part of it that is known
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
    rates.at_least = rates.total;
  } else {
    rates.at_least = rates.move.has_value() ? rates.move : in.map_seconds_per_token;
  }
  if (in.prefill_tokens_per_second > 0) rates.prefill = 1 / in.prefill_tokens_per_second;
  return rates;
}

// Both sides grow with the covered tokens alone: the shortest prompt that is served, or none.
Estimate BreakEven(const TransferPlanInput& in, const guard::RoutePolicy& policy,
                   const Rates& rates) {
  if (!rates.prefill.has_value() || !rates.at_least.has_value()) return {};
  if (*rates.at_least >= *rates.prefill) return {std::nullopt, Provenance::kDerived};
  if (!rates.total.has_value()) return {};
  const int64_t covered = std::max<int64_t>(1, policy.min_covered_tokens);
  return Derived(static_cast<double>(covered) + std::max({1, in.native_tail, policy.native_tail}));
}

// Of a route that serves: the answer to "is it faster", and what it rests on.
std::pair<Reason, std::string> Compare(int64_t covered, const Rates& rates) {
  if (!rates.prefill.has_value()) {
    return {Reason::kNone, "no prefill rate was stated, so nothing was compared"};
  }
  if (rates.at_least.has_value() && *rates.at_least >= *rates.prefill) {
    const auto tokens = static_cast<double>(covered);
    return {Reason::kNotWorthIt,
            absl::StrCat("prefilling ", covered, " tokens takes ", tokens * *rates.prefill,
                         " s, the transfer ", rates.total.has_value() ? "" : "at least ",
                         tokens * *rates.at_least, " s")};
  }
  if (!rates.move.has_value()) {
    return {Reason::kNone, "moving the bytes is unmeasured until a transfer has been seen"};
  }
  if (!rates.total.has_value()) {
    return {Reason::kNone, "mapping is unmeasured until a transfer has been seen"};
  }
  return {Reason::kNone, ""};
}

}  // namespace

absl::string_view Name(Provenance provenance) {
  constexpr absl::string_view kNames[] = {"unmeasured", "derived", "measured", "stated"};
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
  const auto scaled = [covered](std::optional<double> per_token) -> std::optional<double> {
    if (!per_token.has_value()) return std::nullopt;
    return covered * *per_token;
  };
  plan.map_seconds = Derived(scaled(in.map_seconds_per_token));
  plan.move_seconds = Derived(scaled(rates.move));
  plan.total_seconds = Derived(scaled(rates.total));
  plan.prefill_seconds = Derived(scaled(rates.prefill));
  plan.break_even_tokens = BreakEven(in, policy, rates);

  std::tie(plan.reason, plan.detail) = WhyNotServed(in, policy, plan.covered_tokens);
  if (plan.reason == Reason::kNone) {
    std::tie(plan.reason, plan.detail) = Compare(plan.covered_tokens, rates);
  }
  plan.worth_it = plan.reason == Reason::kNone;
  return plan;
}

}  // namespace kvbridge::plan
