// Everything kvbridged counts, behind verbs: the one place that knows prometheus-cpp's types. All
// series of configured pairs and of closed lists exist from the start, so that a rate is never
// missing and the number of series does not grow with traffic.
//
// Thread contract: every method may be called from any thread. A record is some map look-ups and
// costs about a microsecond: once per transfer or call, never per tile.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "core/base/mutex.h"
#include "core/metrics/operation_metrics.h"
#include "core/metrics/pair_family.h"
#include "core/metrics/process_collector.h"

namespace kvbridge::metrics {

// Pairs with series of their own; the rest share `_other`.
inline constexpr size_t kMaxPairs = 64;

struct ReasonLabel {
  std::string reason;
  std::string reason_class;
};

// One RPC method, as gRPC's own metrics name it.
struct RpcMethod {
  std::string service;  // "kvbridge.v1.KvBridge"
  std::string method;   // "Transfer"
  std::string type;     // "unary", "server_stream", "bidi_stream"
  friend auto operator<=>(const RpcMethod&, const RpcMethod&) = default;
};

// One transfer that ended.
struct TransferSample {
  std::string pair;
  std::string outcome;  // "applied", "fallback_reprefill", "unsupported", "error", "cancelled"
  std::string reason;   // empty unless it fell back
  std::string reason_class;
  absl::Duration duration;
  int64_t tokens = 0;
  int64_t covered_tokens = 0;
  double max_abs = 0;  // of mapped elements; read only when applied
  std::vector<std::pair<std::string, absl::Duration>> stages;
};

// One artifact that became resident.
struct ArtifactSample {
  std::string pair;
  std::string artifact;  // first 12 hexadecimal digits of the digest
  std::string source;    // model ids: any bytes
  std::string target;
  std::string dtype;
  uint64_t bytes = 0;
  // R2 of its fit over the target layers, as it says itself; NaN where it says nothing.
  struct Fit {
    double min = std::numeric_limits<double>::quiet_NaN();
    double mean = std::numeric_limits<double>::quiet_NaN();
  };
  Fit keys;
  Fit values;
};

// Read at each scrape.
struct Saturation {
  int64_t inflight_transfers = 0;
  int64_t queue_depth = 0;
  uint64_t memory_used_bytes = 0;
  uint64_t shm_used_bytes = 0;  // regions, draining ones included
  uint64_t events_dropped = 0;
  uint64_t watch_events_dropped = 0;
  uint64_t watch_events_sent = 0;
};

class ServerMetrics {
 public:
  struct Options {
    std::vector<std::string> pairs;
    std::vector<ReasonLabel> reasons;
    std::vector<RpcMethod> methods;
    std::vector<double> latency_buckets;  // seconds, ascending; empty = the default
    std::string version, revision, compiler, backend;
    int64_t queue_limit = 0;
    uint64_t memory_limit_bytes = 0;
    uint64_t shm_limit_bytes = 0;
    std::function<Saturation()> saturation;  // called while scraping, from any thread
  };

  explicit ServerMetrics(Options options);
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  void TransferEnded(const TransferSample& sample);
  // `direction`: "in", "out"; `transport`: "inline", "shm", "ucx".
  void PayloadMoved(absl::string_view direction, absl::string_view transport, int64_t bytes);
  void Planned(bool worth_it);
  // `result`: "ok", "integrity", "incompatible", "io".
  void ArtifactLoad(absl::string_view pair, absl::string_view result, absl::Duration duration);
  void ArtifactResident(const ArtifactSample& sample);
  void ArtifactGone(absl::string_view pair);
  void UnprovenAllowed(absl::string_view pair, bool allowed);
  void DrillIs(absl::string_view pair, double share);
  void StateIs(absl::string_view state);  // "starting", "ready", "degraded", "draining"
  void EventWritten(absl::string_view sink);
  void RpcStarted(const RpcMethod& method);
  void RpcHandled(const RpcMethod& method, absl::string_view code, absl::Duration duration);

  // Makes the series of a pair that came with a reload; up to kMaxPairs.
  void AddPair(const std::string& pair);
  // Takes away those of one that went; what is still counted for it is kOtherPair's.
  void RemovePair(const std::string& pair);
  // `pair`, or kOtherPair when it has no series of its own.
  std::string Pair(absl::string_view pair) const;
  OperationMetrics& operations() { return operations_; }

  // Prometheus text format 0.0.4.
  std::string Scrape();

 private:
  template <typename T>
  using Family = prometheus::Family<T>;

  std::string PairLocked(absl::string_view pair) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void InitPair(const std::string& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void InitOwn(const std::string& pair) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FitIs(const std::string& pair, const ArtifactSample& sample)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void InitClosedLists(const Options& options);

  const std::vector<double> latency_buckets_;
  const std::vector<ReasonLabel> reasons_;
  const std::function<Saturation()> saturation_;
  prometheus::Registry registry_;
  ProcessCollector process_;
  OperationMetrics operations_;

  Family<prometheus::Histogram>& stage_duration_;
  Family<prometheus::Counter>& payload_bytes_;
  Family<prometheus::Counter>& device_errors_;
  Family<prometheus::Counter>& plans_;
  Family<prometheus::Gauge>& state_;
  Family<prometheus::Counter>& events_;
  Family<prometheus::Counter>& grpc_started_;
  Family<prometheus::Counter>& grpc_handled_;
  Family<prometheus::Histogram>& grpc_handling_;
  prometheus::Gauge& inflight_;
  prometheus::Gauge& queue_depth_;
  prometheus::Gauge& memory_used_;
  prometheus::Gauge& shm_used_;
  prometheus::Counter& events_dropped_;
  prometheus::Counter& watch_dropped_;
  prometheus::Counter& overflow_;

  std::set<RpcMethod> methods_;  // immutable after construction
  mutable base::Mutex mutex_;
  PairFamily<prometheus::Counter> transfers_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Counter> fallbacks_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Histogram> transfer_duration_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Histogram> transfer_tokens_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Counter> tokens_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Counter> avoided_tokens_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> mapped_max_abs_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> artifact_info_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Counter> artifact_loads_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Histogram> artifact_load_duration_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> artifact_bytes_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> artifact_fit_r2_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> unproven_routes_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> drill_share_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string, std::less<>> pairs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::metrics
