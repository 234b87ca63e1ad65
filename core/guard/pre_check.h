// All that can be known about a transfer before a byte of it is read.
#pragma once

#include <cstdint>
#include <variant>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/guard/reason.h"
#include "core/guard/route_policy.h"
#include "core/guard/transfer_spec.h"
#include "core/model/model_spec.h"

namespace kvbridge::guard {

// What the transfer is checked against, borrowed for the call.
struct PreCheckContext {
  const model::ModelSpec& artifact_source;
  const model::ModelSpec& artifact_target;
  bool proven = false;     // the artifact's evidence passes
  int64_t max_tokens = 0;  // of one request
  absl::Time now;
  absl::string_view artifact_digest = {};
};

struct Admissible {
  // [first_token, covered_tokens) of the selection will be mapped; at least one of them.
  int64_t covered_tokens = 0;
  bool publish = true;           // false on a shadow route: mapped and checked, never applied
  bool shadow_selected = false;  // the caller is asked to prefill as well
};

// Whether it is 64 lower-case hexadecimal digits.
bool IsSha256(absl::string_view digest);

// min(selection, N - max(1, tails), caps); 0 when nothing is left, and for tokens or N below 1. A
// cap of 0 is none; N = 0 means N = tokens.
int64_t CoveredTokens(const TransferSpec& spec, const RoutePolicy& policy);

// The checks in order; the first that fails is the answer:
//   1 request id, counts, key state           invalid_request
//   2 route off                               route_disabled
//   3 call's deadline; a latency budget of 0  deadline_exceeded, latency_budget
//   4 max_tokens                              token_limit
//   5 both specs against the artifact's       incompatible_model, shape_mismatch, or UNSUPPORTED
//   6 the artifact's digest, if one is asked  artifact_unavailable
//   7 hops                                    app_gate
//   8 evidence (past shadow)                  unproven_pair
//   9 canary share                            route_disabled
//  10 covered tokens past first_token        not_worth_it
//  11 drill                                  the reason that is rehearsed
// What is wrong with the request is said before what the route's policy thinks of it. Positions are
// checked when they are made (kv::Positions). Pure; nothing is allocated but the message.
std::variant<Admissible, Refusal> PreCheck(const TransferSpec& spec, const RoutePolicy& policy,
                                           const PreCheckContext& context);

}  // namespace kvbridge::guard
