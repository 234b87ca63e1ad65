// The wire's reasons as words, and errors of a call as reasons.
#pragma once

#include <string>

#include "absl/status/status.h"

#include "client/cpp/transfer.h"
#include "kvbridge/v1/types.pb.h"

namespace kvbridge::client {

// "latency_budget"; empty for REASON_UNSPECIFIED, "internal" for a number this version doesn't
// know.
std::string ReasonWord(v1::Reason reason);
// "capacity"; as above.
std::string ReasonClassWord(v1::ReasonClass reason_class);

// Makes `result` a fallback for a call that ended without a decision that can be trusted.
// `accepted`: the server had admitted the request, so it was reached.
void SetFallback(const absl::Status& error, bool accepted, TransferResult* result);

// Whether the result says that the way to the server, or the server itself, is broken: what opens
// the circuit.
bool IsInfraFailure(const TransferResult& result);

// The result as an error, for callers that asked to fail; its message starts with the reason.
absl::Status ToStatus(const TransferResult& result);

}  // namespace kvbridge::client
