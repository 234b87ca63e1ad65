// What a transfer is asked with, and how it ended.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::client {

struct TransferOptions {
  // As transfer.proto says. The client fills in what the views state: both specs' geometries where
  // they are absent (a geometry that differs from its view is INVALID_ARGUMENT), the selection's
  // token count where it is 0 (fewer than the view's tokens sends the first ones), key_state where
  // it is unspecified (ROPED), and where the bytes are. A target view with fewer tokens than are
  // sent lowers max_covered_tokens to what it holds.
  v1::TransferHeader header;
  // For everything: connecting, retries, sending, mapping, receiving.
  absl::Duration deadline = absl::InfiniteDuration();
};

// Words that only clients say; the others are the wire's (v1::Reason), in lower case without
// prefix.
inline constexpr absl::string_view kUnreachable = "unreachable";
inline constexpr absl::string_view kCircuitOpen = "circuit_open";

struct Timings {
  absl::Duration total;
  absl::Duration admission;  // of the last attempt: from the start to Accepted
  absl::Duration sending;    // from Accepted to the end of the last chunk's write
  absl::Duration receiving;  // from the first answer chunk to Completed
};

struct TransferResult {
  // The target cache holds tokens [0, covered_tokens) if and only if this is OUTCOME_APPLIED.
  // Otherwise covered_tokens is 0 and whatever was written to the target is zeroed.
  v1::Outcome outcome = v1::OUTCOME_FALLBACK_REPREFILL;
  std::string reason;        // "latency_budget", "unreachable", ...; empty when applied
  std::string reason_class;  // "client", "policy", "quality", "capacity", "infra", "internal"
  std::string detail;        // one sentence for a person
  int64_t covered_tokens = 0;
  // The server's, when one came. Where it said applied and this result does not, the answer was
  // damaged on the way.
  v1::Decision decision;
  int64_t bytes_sent = 0;      // payload
  int64_t bytes_received = 0;  // payload
  Timings timings;
  int attempts = 0;  // 0 when the circuit was open

  bool applied() const { return outcome == v1::OUTCOME_APPLIED; }
};

}  // namespace kvbridge::client
