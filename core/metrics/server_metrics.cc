#include "core/metrics/server_metrics.h"

#include <sstream>

#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include <prometheus/text_serializer.h>

#include "core/metrics/families.h"

namespace kvbridge::metrics {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

constexpr const char* kApplied = "applied";
constexpr const char* kUnsupported = "unsupported";
constexpr const char* kOutcomes[] = {kApplied, "fallback_reprefill", kUnsupported, "error",
                                     "cancelled"};
// The first of them have latency series from the start, the rare ones once they happen, and
// kUnsupported has none: nothing was done that could take time.
constexpr size_t kCommonOutcomes = 2;
constexpr const char* kStages[] = {"queue", "ingress", "strip_rope", "map", "guard", "egress"};
constexpr const char* kCpu = "cpu";  // the one device
constexpr const char* kStates[] = {"starting", "ready", "degraded", "draining"};
constexpr const char* kLoadResults[] = {"ok", "integrity", "incompatible", "io"};

// 0.5 ms to 10 s; the one public GPU run had its median at 46 ms.
const std::vector<double> kLatencyBuckets = {.0005, .001, .002, .004, .006, .008, .01,
                                             .015,  .02,  .03,  .04,  .06,  .08,  .1,
                                             .15,   .25,  .5,   1,    2.5,  5,    10};
const std::vector<double> kTokenBuckets = {16,   32,   64,   128,   256,   512,   1024,
                                           2048, 4096, 8192, 16384, 32768, 65536, 131072};
// Coarse: calls have a finer histogram of their own where it matters.
const std::vector<double> kRpcBuckets = {.001, .005, .025, .1, .5, 1, 5, 10};
const std::vector<double> kLoadBuckets = {.1, .5, 1, 5, 10, 30, 60, 300};

Labels Of(const RpcMethod& method) {
  return {
      {"grpc_service", method.service}, {"grpc_method", method.method}, {"grpc_type", method.type}};
}

// A counter of somebody else's.
void CatchUp(uint64_t total, Counter& counter) {
  const double more = static_cast<double>(total) - counter.Value();
  if (more > 0) counter.Increment(more);
}

}  // namespace

ServerMetrics::ServerMetrics(Options options)
    : latency_buckets_(options.latency_buckets.empty() ? kLatencyBuckets : options.latency_buckets),
      reasons_(options.reasons),
      saturation_(std::move(options.saturation)),
      operations_(&registry_),
      stage_duration_(AddHistogram(kStageDuration, registry_)),
      payload_bytes_(AddCounter(kPayloadBytes, registry_)),
      device_errors_(AddCounter(kDeviceErrors, registry_)),
      plans_(AddCounter(kPlans, registry_)),
      state_(AddGauge(kState, registry_)),
      events_(AddCounter(kEvents, registry_)),
      grpc_started_(AddCounter(kGrpcStarted, registry_)),
      grpc_handled_(AddCounter(kGrpcHandled, registry_)),
      grpc_handling_(AddHistogram(kGrpcHandling, registry_)),
      inflight_(AddGauge(kInflight, registry_).Add({})),
      queue_depth_(AddGauge(kQueueDepth, registry_).Add({})),
      memory_used_(AddGauge(kMemoryPoolUsed, registry_).Add({{"pool", "host"}})),
      shm_used_(AddGauge(kMemoryPoolUsed, registry_).Add({{"pool", "shm"}})),
      events_dropped_(AddCounter(kEventsDropped, registry_).Add({{"sink", "log"}})),
      watch_dropped_(AddCounter(kEventsDropped, registry_).Add({{"sink", "watch"}})),
      overflow_(
          AddCounter(kSeriesOverflow, registry_).Add({{"metric", std::string(kTransfers.name)}})),
      transfers_(AddCounter(kTransfers, registry_)),
      fallbacks_(AddCounter(kFallbacks, registry_)),
      transfer_duration_(AddHistogram(kTransferDuration, registry_)),
      transfer_tokens_(AddHistogram(kTransferTokens, registry_)),
      tokens_(AddCounter(kTokens, registry_)),
      avoided_tokens_(AddCounter(kAvoidedPrefillTokens, registry_)),
      mapped_max_abs_(AddGauge(kMappedMaxAbs, registry_)),
      artifact_info_(AddGauge(kArtifactInfo, registry_)),
      artifact_loads_(AddCounter(kArtifactLoads, registry_)),
      artifact_load_duration_(AddHistogram(kArtifactLoadDuration, registry_)),
      artifact_bytes_(AddGauge(kArtifactBytes, registry_)),
      artifact_fit_r2_(AddGauge(kArtifactFitR2, registry_)),
      unproven_routes_(AddGauge(kUnprovenRoutes, registry_)),
      drill_share_(AddGauge(kDrillShare, registry_)) {
  for (const std::string& pair : options.pairs) AddPair(pair);
  {
    base::MutexLock lock(&mutex_);
    InitPair(std::string(kOtherPair));
  }
  InitClosedLists(options);
}

void ServerMetrics::AddPair(const std::string& pair) {
  {
    base::MutexLock lock(&mutex_);
    if (pairs_.count(pair) > 0) return;
    if (pairs_.size() >= kMaxPairs) {
      overflow_.Increment();
      return;
    }
    pairs_.insert(pair);
    InitPair(pair);
    InitOwn(pair);
  }
  operations_.AddPair(pair);
}

void ServerMetrics::RemovePair(const std::string& pair) {
  {
    base::MutexLock lock(&mutex_);
    if (pairs_.erase(pair) == 0) return;
    const auto remove = [&pair](auto&... families) { (families.Remove(pair), ...); };
    remove(transfers_, fallbacks_, transfer_duration_, transfer_tokens_, tokens_, avoided_tokens_,
           mapped_max_abs_, artifact_info_, artifact_loads_, artifact_load_duration_,
           artifact_bytes_, artifact_fit_r2_, unproven_routes_, drill_share_);
  }
  operations_.RemovePair(pair);
}

// What only a pair of its own has.
void ServerMetrics::InitOwn(const std::string& pair) {
  for (const char* outcome : absl::MakeConstSpan(kOutcomes, kCommonOutcomes)) {
    transfer_duration_.Add({{"pair", pair}, {"outcome", outcome}}, latency_buckets_);
  }
  for (const char* result : kLoadResults) {
    artifact_loads_.Add({{"pair", pair}, {"result", result}});
  }
  artifact_load_duration_.Add({{"pair", pair}}, kLoadBuckets);
  artifact_bytes_.Add({{"pair", pair}});
  drill_share_.Add({{"pair", pair}});
  FitIs(pair, {});
}

void ServerMetrics::InitPair(const std::string& pair) {
  for (const char* outcome : kOutcomes) {
    transfers_.Add({{"pair", pair}, {"outcome", outcome}});
    tokens_.Add({{"pair", pair}, {"outcome", outcome}});
  }
  for (const ReasonLabel& reason : reasons_) {
    fallbacks_.Add({{"pair", pair}, {"reason", reason.reason}, {"class", reason.reason_class}});
  }
  transfer_tokens_.Add({{"pair", pair}}, kTokenBuckets);
  avoided_tokens_.Add({{"pair", pair}});
}

void ServerMetrics::InitClosedLists(const Options& options) {
  AddGauge(kBuildInfo, registry_)
      .Add({{"version", options.version},
            {"revision", options.revision},
            {"compiler", options.compiler},
            {"backend", options.backend}})
      .Set(1);
  AddGauge(kQueueLimit, registry_).Add({}).Set(static_cast<double>(options.queue_limit));
  auto& memory_limit = AddGauge(kMemoryPoolLimit, registry_);
  memory_limit.Add({{"pool", "host"}}).Set(static_cast<double>(options.memory_limit_bytes));
  memory_limit.Add({{"pool", "shm"}}).Set(static_cast<double>(options.shm_limit_bytes));
  for (const char* stage : kStages) stage_duration_.Add({{"stage", stage}}, latency_buckets_);
  for (const char* direction : {"in", "out"}) {
    for (const char* transport : {"inline", "shm", "ucx"}) {
      payload_bytes_.Add({{"direction", direction}, {"transport", transport}});
    }
  }
  AddGauge(kDeviceInfo, registry_).Add({{"device", kCpu}, {"kind", options.backend}}).Set(1);
  for (const char* kind : {"oom", "error"}) device_errors_.Add({{"device", kCpu}, {"kind", kind}});
  for (const char* result : {"worth_it", "not_worth_it"}) plans_.Add({{"result", result}});
  for (const char* state : kStates) state_.Add({{"state", state}});
  for (const char* sink : {"log", "watch"}) events_.Add({{"sink", sink}, {"result", "ok"}});
  methods_.insert(options.methods.begin(), options.methods.end());
  for (const RpcMethod& method : methods_) {
    grpc_started_.Add(Of(method));
    grpc_handling_.Add(Of(method), kRpcBuckets);
    Labels ok = Of(method);
    ok.emplace("grpc_code", "OK");
    grpc_handled_.Add(ok);
  }
}

std::string ServerMetrics::Pair(absl::string_view pair) const {
  base::MutexLock lock(&mutex_);
  return PairLocked(pair);
}

std::string ServerMetrics::PairLocked(absl::string_view pair) const {
  return std::string(pairs_.find(pair) != pairs_.end() ? pair : kOtherPair);
}

void ServerMetrics::TransferEnded(const TransferSample& sample) {
  for (const auto& [stage, time] : sample.stages) {
    stage_duration_.Add({{"stage", stage}}, latency_buckets_).Observe(absl::ToDoubleSeconds(time));
  }
  if (absl::string_view reason = sample.reason; absl::ConsumePrefix(&reason, "device_")) {
    device_errors_.Add({{"device", kCpu}, {"kind", std::string(reason)}}).Increment();
  }
  base::MutexLock lock(&mutex_);
  const std::string pair = PairLocked(sample.pair);
  const Labels by_outcome = {{"pair", pair}, {"outcome", sample.outcome}};
  transfers_.Add(by_outcome).Increment();
  tokens_.Add(by_outcome).Increment(static_cast<double>(sample.tokens));
  if (sample.outcome != kUnsupported) {
    transfer_duration_.Add(by_outcome, latency_buckets_)
        .Observe(absl::ToDoubleSeconds(sample.duration));
  }
  transfer_tokens_.Add({{"pair", pair}}, kTokenBuckets).Observe(static_cast<double>(sample.tokens));
  if (!sample.reason.empty()) {
    fallbacks_.Add({{"pair", pair}, {"reason", sample.reason}, {"class", sample.reason_class}})
        .Increment();
  }
  if (sample.outcome == kApplied) {
    avoided_tokens_.Add({{"pair", pair}}).Increment(static_cast<double>(sample.covered_tokens));
    mapped_max_abs_.Add({{"pair", pair}}).Set(sample.max_abs);
  }
}

void ServerMetrics::PayloadMoved(absl::string_view direction, absl::string_view transport,
                                 int64_t bytes) {
  payload_bytes_.Add({{"direction", std::string(direction)}, {"transport", std::string(transport)}})
      .Increment(static_cast<double>(bytes));
}

void ServerMetrics::Planned(bool worth_it) {
  plans_.Add({{"result", worth_it ? "worth_it" : "not_worth_it"}}).Increment();
}

void ServerMetrics::ArtifactLoad(absl::string_view name, absl::string_view result,
                                 absl::Duration duration) {
  base::MutexLock lock(&mutex_);
  const std::string pair = PairLocked(name);
  artifact_loads_.Add({{"pair", pair}, {"result", std::string(result)}}).Increment();
  artifact_load_duration_.Add({{"pair", pair}}, kLoadBuckets)
      .Observe(absl::ToDoubleSeconds(duration));
}

void ServerMetrics::ArtifactResident(const ArtifactSample& sample) {
  base::MutexLock lock(&mutex_);
  const std::string pair = PairLocked(sample.pair);
  artifact_info_.Remove(pair);  // of the artifact that this one replaces
  artifact_info_
      .Add({{"pair", pair},
            {"artifact", sample.artifact},
            {"source", sample.source},
            {"target", sample.target},
            {"dtype", sample.dtype}})
      .Set(1);
  artifact_bytes_.Add({{"pair", pair}}).Set(static_cast<double>(sample.bytes));
  FitIs(pair, sample);
}

void ServerMetrics::ArtifactGone(absl::string_view name) {
  base::MutexLock lock(&mutex_);
  const std::string pair = PairLocked(name);
  artifact_info_.Remove(pair);
  artifact_bytes_.Add({{"pair", pair}}).Set(0);
  FitIs(pair, {});
}

void ServerMetrics::FitIs(const std::string& pair, const ArtifactSample& sample) {
  for (const auto& [tensor, fit] : {std::pair("key", sample.keys), {"value", sample.values}}) {
    for (const auto& [stat, value] : {std::pair("min", fit.min), {"mean", fit.mean}}) {
      artifact_fit_r2_.Add({{"pair", pair}, {"tensor", tensor}, {"stat", stat}}).Set(value);
    }
  }
}

void ServerMetrics::UnprovenAllowed(absl::string_view pair, bool allowed) {
  base::MutexLock lock(&mutex_);
  unproven_routes_.Add({{"pair", PairLocked(pair)}}).Set(allowed ? 1 : 0);
}

void ServerMetrics::DrillIs(absl::string_view pair, double share) {
  base::MutexLock lock(&mutex_);
  drill_share_.Add({{"pair", PairLocked(pair)}}).Set(share);
}

void ServerMetrics::StateIs(absl::string_view state) {
  for (const char* each : kStates) state_.Add({{"state", each}}).Set(state == each ? 1 : 0);
}

void ServerMetrics::EventWritten(absl::string_view sink) {
  events_.Add({{"sink", std::string(sink)}, {"result", "ok"}}).Increment();
}

void ServerMetrics::RpcStarted(const RpcMethod& method) {
  grpc_started_.Add(Of(method)).Increment();
}

void ServerMetrics::RpcHandled(const RpcMethod& method, absl::string_view code,
                               absl::Duration duration) {
  Labels labels = Of(method);
  grpc_handling_.Add(labels, kRpcBuckets).Observe(absl::ToDoubleSeconds(duration));
  labels.emplace("grpc_code", std::string(code));
  grpc_handled_.Add(labels).Increment();
}

std::string ServerMetrics::Scrape() {
  if (saturation_) {
    const Saturation now = saturation_();
    inflight_.Set(static_cast<double>(now.inflight_transfers));
    queue_depth_.Set(static_cast<double>(now.queue_depth));
    memory_used_.Set(static_cast<double>(now.memory_used_bytes));
    shm_used_.Set(static_cast<double>(now.shm_used_bytes));
    base::MutexLock lock(&mutex_);
    CatchUp(now.events_dropped, events_dropped_);
    CatchUp(now.watch_events_dropped, watch_dropped_);
    CatchUp(now.watch_events_sent, events_.Add({{"sink", "watch"}, {"result", "ok"}}));
  }
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  for (auto& family : process_.Collect()) families.push_back(std::move(family));
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace kvbridge::metrics
