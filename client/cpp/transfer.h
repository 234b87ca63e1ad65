// What a transfer is asked with, and how it ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "client/cpp/mapped_prefix.h"
#include "client/cpp/source_progress.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::client {

// Whether a server that is there does not let this caller in: a token or certificate is missing,
// unknown, or granted other methods.
inline bool IsRefusal(absl::StatusCode code) {
  return code == absl::StatusCode::kUnauthenticated || code == absl::StatusCode::kPermissionDenied;
}

// How a transfer's bytes travel.
enum class PlaneChoice {
  kAuto,    // shared memory with a server on this host; chunks where there is none
  kRegion,  // shared memory, or fall back with `transport`
  kInline,  // chunks
};

struct TransferOptions {
  // As transfer.proto says. The client fills in what the views state: both specs' geometries where
  // they are absent (a geometry that differs from its view is INVALID_ARGUMENT), the selection's
  // token count where it is 0 (fewer than the view's tokens sends the first ones), key_state where
  // it is unspecified (ROPED), and where the bytes are. A target view with fewer tokens than are
  // sent lowers max_covered_tokens to what it holds.
  //
  // header.peer: the kvbridged beside the target, by the server's name for it: the cache travels
  // there and is mapped there, or on this side where the server can and the target's is the
  // smaller one (decision.map_side). The source is where it would be without; the answer comes back
  // in the call. header.target_selection.pool: the answer goes to pages that another process of the
  // tenant registered with the server that maps (Client::Locate); of the target view only the
  // shape is read then, and planes need not be there.
  v1::TransferHeader header;
  // For everything: connecting, retries, sending, mapping, receiving.
  absl::Duration deadline = absl::InfiniteDuration();
  PlaneChoice plane = PlaneChoice::kAuto;

  // W3C Trace Context of the caller, passed on: the transfer is a span of its trace, which the
  // server's log and events name. Empty = none. `tracestate` goes beside a traceparent only.
  std::string traceparent;
  std::string tracestate;

  // Appending: what the target holds, and the ids of the source's tokens. Tokens that both share
  // are left alone; all are mapped again when the server has another artifact now, or when hops
  // differ. Borrowed. The header's own first_token is for callers who know better.
  const MappedPrefix* prefix = nullptr;
  std::span<const int32_t> token_ids;

  // A source pool that prefill is still filling; null = all of it is there.
  std::shared_ptr<SourceProgress> progress;
  // Called on gRPC's thread while the transfer runs; must not block. Layers [begin, end) of the
  // target are whole and were checked; the transfer may still fall back.
  std::function<void(int32_t begin, int32_t end)> on_layers;
  // Pool sources: pages may be reused.
  std::function<void()> on_source_released;
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
  // Of the call, where it ended without the server's decision; OK with one.
  absl::StatusCode call_status = absl::StatusCode::kOk;
  int64_t covered_tokens = 0;
  int64_t first_token = 0;  // tokens before it were in place (TransferOptions::prefix)
  // How the bytes travelled to the server, and back where the answer came here without a peer.
  v1::Plane plane = v1::PLANE_UNSPECIFIED;
  std::string plane_reason;  // why not in shared memory: a word of docs/metrics.md
  std::string plane_detail;  // one sentence for a person
  // From the server to its peer: UCX, INLINE, or unspecified where nothing went on.
  v1::Plane peer_plane = v1::PLANE_UNSPECIFIED;
  // The server's, when one came. Where it said applied and this result does not, the answer was
  // damaged on the way.
  v1::Decision decision;
  int64_t bytes_sent = 0;      // payload
  int64_t bytes_received = 0;  // payload
  Timings timings;
  int attempts = 0;  // 0 when the circuit was open
  // Of the options' trace, and of the server's span in it, as its log and events have them; empty
  // where no server answered, or there was no trace.
  std::string trace_id;
  std::string span_id;

  bool applied() const { return outcome == v1::OUTCOME_APPLIED; }
  // The reason is `unreachable` then; `detail` says what the caller lacks.
  bool refused() const { return IsRefusal(call_status); }
};

}  // namespace kvbridge::client
