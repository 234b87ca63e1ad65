// What a server is at one moment, as an operator's page shows it: plain data, gathered by
// StatusSource. Strings may hold any bytes: model ids come from artifacts, details from callers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "server/activity.h"

namespace kvbridge::server {

struct RouteStatus {
  std::string name;
  std::string stage;        // "off", "shadow", "canary", "live"
  double canary_share = 0;  // read in "canary" only
  std::string circuit;      // "closed", "open", "half_open"
  // Of the artifact in use; empty and 0 when none is.
  std::string artifact;  // first 12 hexadecimal digits of its digest
  std::string verdict;   // "PASS", "FAIL", "UNPROVEN"
  std::string source;    // model ids
  std::string target;
  uint64_t resident_bytes = 0;
  std::string note;  // why it does not serve, or never applies, or keeps an older artifact; a drill
};

struct FallbackStatus {
  absl::Time time;
  std::string route;
  std::string reason;
  std::string reason_class;
  std::string detail;
  std::string request_id;
};

struct ChangeStatus {
  absl::Time time;
  std::string route;
  std::string what;  // "stage", "circuit", "drill"
  std::string from;
  std::string to;
  std::string cause;
  std::string detail;
};

struct PoolStatus {
  std::string name;
  uint64_t used_bytes = 0;
  uint64_t limit_bytes = 0;  // 0: none
};

struct CertificateStatus {
  std::string role;  // "server", "client authority"
  absl::Time expires;
};

// Of the last transfers that were applied.
struct LatencyStatus {
  int samples = 0;
  double p50_ms = 0;  // 0 without samples
  double p99_ms = 0;
};

struct Status {
  absl::Time now;
  absl::Time started;
  std::string state;  // "starting", "ready", "degraded", "draining"
  std::string why;    // why it is not ready; empty
  std::string host;
  std::string version;
  std::string revision;
  std::string backend;
  std::vector<RouteStatus> routes;
  Activity::Minute minute;
  LatencyStatus latency;
  int64_t inflight_transfers = 0;
  int64_t inflight_limit = 0;
  int64_t queued = 0;  // tiles that wait for a worker
  int64_t queue_limit = 0;
  std::vector<PoolStatus> pools;
  std::vector<FallbackStatus> fallbacks;  // newest first
  std::vector<ChangeStatus> changes;      // newest first
  bool tls = false;
  std::vector<CertificateStatus> certificates;

  // How long `minute` can have counted.
  absl::Duration counted() const { return std::min(minute.span, now - started); }
};

}  // namespace kvbridge::server
