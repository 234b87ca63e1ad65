// libkvbridge_client: hands one model's KV cache to kvbridged and gets its sibling's back, or the
// reason to prefill instead.
//
// Thread contract: any thread may call any method at any time; calls block. Copying and checking
// run on gRPC's threads while Transfer waits. A client may be destroyed when no call is in
// progress.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "client/cpp/cache_view.h"
#include "client/cpp/channels.h"
#include "client/cpp/counters.h"
#include "client/cpp/transfer.h"
#include "kvbridge/v1/admin.pb.h"
#include "kvbridge/v1/plan.pb.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::client {

// What a transfer that was not applied is to the caller.
enum class OnFallback {
  kPrefill,  // an answer: OK with outcome and reason, also when no server can be reached
  kFail,     // an error: its message starts with the reason
};

struct RetryPolicy {
  // Attempts altogether. Only what no server has accepted is tried again: UNAVAILABLE before
  // Accepted, and no payload leaves before that.
  int max_attempts = 3;
  // Doubles each time; each wait is a random 50 to 100 % of it and ends with the deadline.
  absl::Duration initial_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(1);
};

struct CircuitPolicy {
  int failures = 5;  // in a row: unreachable, transport, device_error
  absl::Duration open_for = absl::Seconds(5);
};

struct ClientOptions {
  std::string target;  // "host:port" or "unix:/path.sock"
  int channels = 2;    // connections to a host; a unix socket has one
  absl::Duration connect_timeout = absl::Seconds(2);
  std::optional<TlsOptions> tls;       // none = plaintext
  std::function<std::string()> token;  // the caller's, asked for at each call; empty = none
  OnFallback on_fallback = OnFallback::kPrefill;
  RetryPolicy retry;
  CircuitPolicy circuit;
  // Most shared memory for caches that do not lie in a pool (pool.h).
  size_t staging_bytes = size_t{2} << 30;
  std::function<absl::Time()> now;  // the circuit's clock; empty = a steady one
};

class Client {
 public:
  // INVALID_ARGUMENT names the option. Connects when first used.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // One transfer. The target's element type is the answer's. With a server on this host the bytes
  // go through shared memory: views of a Pool are read and written where they lie, others are
  // copied once. TransferResult says which plane it was. After CANCELLED, or a call that broke off,
  // pages of a target pool may still be written for some milliseconds. Errors:
  //   INVALID_ARGUMENT  the options or views contradict each other; nothing was sent
  //   CANCELLED         `stop` was requested; what chunks have written is zeroed
  //   with kFail, any other end but applied: UNAUTHENTICATED and PERMISSION_DENIED (unreachable:
  //   the server is there), UNAVAILABLE (unreachable otherwise, circuit_open), DEADLINE_EXCEEDED,
  //   RESOURCE_EXHAUSTED (capacity), DATA_LOSS (transport), INVALID_ARGUMENT (invalid_request),
  //   INTERNAL (internal), FAILED_PRECONDITION (all else)
  absl::StatusOr<TransferResult> Transfer(const TransferOptions& options, const SourceView& source,
                                          const TargetView& target, std::stop_token stop = {});

  // Where pages of a pool (Pool::Target) are in this client's session, for whoever moves a cache
  // into them: another process of the tenant, on this host or, with header.peer, on another. The
  // pool is registered where it isn't yet. Good until this client is destroyed, or the session
  // lost with the server; a transfer that names it after that falls back with invalid_request. From
  // here until the transfer's end the pages are the transfer's. INVALID_ARGUMENT: no view of a
  // Pool. FAILED_PRECONDITION: no shared memory; starts with a word of docs/metrics.md.
  absl::StatusOr<v1::PoolLocation> Locate(const TargetView& pages, const std::string& tenant = "",
                                          absl::Duration timeout = kDefaultTimeout);

  // Plain calls. Errors are the server's, or UNAVAILABLE and DEADLINE_EXCEEDED.
  absl::StatusOr<v1::PlanResponse> Plan(const v1::PlanRequest& request,
                                        absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::HealthResponse> Health(absl::string_view route = "",
                                            absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::GetCapabilitiesResponse> GetCapabilities(
      absl::Duration timeout = kDefaultTimeout);

  // For operators. Loading takes as long as reading and verifying the artifact.
  absl::StatusOr<v1::ArtifactInfo> LoadArtifact(absl::string_view route, absl::string_view path,
                                                absl::Duration timeout = kLoadTimeout);
  absl::Status UnloadArtifact(absl::string_view route, absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::ListArtifactsResponse> ListArtifacts(absl::Duration timeout = kDefaultTimeout);
  absl::StatusOr<v1::SetRouteResponse> SetRoute(const v1::SetRouteRequest& request,
                                                absl::Duration timeout = kDefaultTimeout);

  // What the server decides from now on, about one route or ("") all of them. `on_event` is called
  // on this thread; its first error ends the watch and is returned. OK after `stop`; otherwise how
  // the server ended it.
  absl::Status WatchEvents(
      absl::string_view route,
      const std::function<absl::Status(const v1::WatchEventsResponse&)>& on_event,
      std::stop_token stop = {});

  CountersSnapshot counters() const;

  static constexpr absl::Duration kDefaultTimeout = absl::Seconds(10);
  static constexpr absl::Duration kLoadTimeout = absl::Minutes(10);

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvbridge::client
