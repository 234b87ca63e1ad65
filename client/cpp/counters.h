// What a client has seen: fallbacks of a server that is down are visible only here. The names are
// those of the metrics (docs/metrics.md); an embedder exports a snapshot as it likes.
//
// Thread contract: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "client/cpp/circuit.h"
#include "client/cpp/transfer.h"

namespace kvbridge::client {

struct CountersSnapshot {
  // kvbridge_client_requests_total by outcome: applied, fallback_reprefill, unsupported, error
  // (refused before anything was sent), cancelled.
  std::map<std::string, uint64_t> requests;
  // kvbridge_client_fallbacks_total by reason.
  std::map<std::string, uint64_t> fallbacks;
  // kvbridge_client_planes_total by plane: "region", "inline".
  std::map<std::string, uint64_t> planes;
  // kvbridge_client_plane_fallbacks_total by why it was not "region".
  std::map<std::string, uint64_t> plane_fallbacks;
  // kvbridge_client_request_duration_seconds: sum and count over all requests.
  double duration_seconds_sum = 0;
  uint64_t duration_seconds_count = 0;
  // kvbridge_client_retries_total.
  uint64_t retries = 0;
  // kvbridge_client_circuit_state: 0 closed, 1 half open, 2 open.
  Circuit::State circuit_state = Circuit::State::kClosed;
};

class Counters {
 public:
  Counters();
  void CountResult(const TransferResult& result);
  // "error" or "cancelled".
  void CountOther(absl::string_view outcome, absl::Duration elapsed);
  // Without the circuit's state.
  CountersSnapshot Snapshot() const;

 private:
  mutable std::mutex mutex_;  // guards all below
  CountersSnapshot counts_;
};

}  // namespace kvbridge::client
