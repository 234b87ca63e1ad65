// The one list of metrics: name, type, labels and help of everything kvbridged exports. Dashboards,
// alerts and docs/metrics.md are checked against it. Names are a contract: never renamed.
//
// Labels are bounded: `pair` is a configured route, or `_other`; the rest are closed lists. Request
// ids, tenants, revisions and paths are never labels.
#pragma once

#include "absl/strings/string_view.h"

namespace kvbridge::metrics {

// The `pair` of what has no series of its own: transfers that name no route, pairs beyond the most
// there may be, and what is left of one that went.
inline constexpr absl::string_view kOtherPair = "_other";

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricSpec {
  absl::string_view name;
  MetricType type;
  absl::string_view labels;  // comma separated, in the order written
  absl::string_view help;
};

inline constexpr MetricSpec kBuildInfo{"kvbridge_build_info", MetricType::kGauge,
                                       "version,revision,compiler,backend",
                                       "1; what was built and what computes."};
inline constexpr MetricSpec kArtifactInfo{"kvbridge_artifact_info", MetricType::kGauge,
                                          "pair,artifact,source,target,dtype",
                                          "1 per resident artifact; join by pair."};
inline constexpr MetricSpec kTransfers{"kvbridge_transfers_total", MetricType::kCounter,
                                       "pair,outcome", "Transfers by how they ended."};
inline constexpr MetricSpec kFallbacks{"kvbridge_fallbacks_total", MetricType::kCounter,
                                       "pair,reason,class",
                                       "Transfers that were not applied, by reason."};
inline constexpr MetricSpec kTransferDuration{
    "kvbridge_transfer_duration_seconds", MetricType::kHistogram, "pair,outcome",
    "Seconds from a transfer's header to its end, unless unsupported."};
inline constexpr MetricSpec kStageDuration{"kvbridge_transfer_stage_duration_seconds",
                                           MetricType::kHistogram, "stage",
                                           "Seconds of one stage of one transfer, over its tiles."};
inline constexpr MetricSpec kTransferTokens{"kvbridge_transfer_tokens", MetricType::kHistogram,
                                            "pair", "Tokens of a transfer's selection."};
inline constexpr MetricSpec kTokens{"kvbridge_tokens_total", MetricType::kCounter, "pair,outcome",
                                    "Tokens of selections, by how the transfer ended."};
inline constexpr MetricSpec kAvoidedPrefillTokens{
    "kvbridge_avoided_prefill_tokens_total", MetricType::kCounter, "pair",
    "Tokens covered by applied transfers: prefill that the target was spared."};
inline constexpr MetricSpec kPayloadBytes{
    "kvbridge_payload_bytes_total", MetricType::kCounter, "direction,transport",
    "Cache bytes received and sent, or read and written in regions."};
inline constexpr MetricSpec kInflight{"kvbridge_inflight_transfers", MetricType::kGauge, "",
                                      "Admitted transfers that have not ended."};
inline constexpr MetricSpec kQueueDepth{"kvbridge_queue_depth", MetricType::kGauge, "",
                                        "Tiles waiting for a worker."};
inline constexpr MetricSpec kQueueLimit{"kvbridge_queue_limit", MetricType::kGauge, "",
                                        "Tiles that may wait."};
inline constexpr MetricSpec kMappedMaxAbs{
    "kvbridge_mapped_max_abs", MetricType::kGauge, "pair",
    "Largest magnitude of a mapped element in the last transfer: headroom to the bound."};
inline constexpr MetricSpec kArtifactLoads{"kvbridge_artifact_loads_total", MetricType::kCounter,
                                           "pair,result", "Artifact loads by result."};
inline constexpr MetricSpec kArtifactLoadDuration{"kvbridge_artifact_load_duration_seconds",
                                                  MetricType::kHistogram, "pair",
                                                  "Seconds to load, verify and self-test."};
inline constexpr MetricSpec kArtifactBytes{"kvbridge_artifact_bytes", MetricType::kGauge, "pair",
                                           "Bytes of the resident artifact; 0 when none is."};
inline constexpr MetricSpec kArtifactFitR2{
    "kvbridge_artifact_fit_r2", MetricType::kGauge, "pair,tensor,stat",
    "R2 of the resident artifact's fit over its target layers; NaN where it says nothing."};
inline constexpr MetricSpec kUnprovenRoutes{
    "kvbridge_unproven_routes", MetricType::kGauge, "pair",
    "1 when the route may serve an artifact without passing evidence."};
inline constexpr MetricSpec kDrillShare{
    "kvbridge_drill_share", MetricType::kGauge, "pair",
    "Share of the route's transfers that fall back for a drill; 0 when none is on."};
inline constexpr MetricSpec kMemoryPoolUsed{"kvbridge_memory_pool_used_bytes", MetricType::kGauge,
                                            "pool",
                                            "Bytes reserved by transfers; shm: of regions."};
inline constexpr MetricSpec kMemoryPoolLimit{"kvbridge_memory_pool_limit_bytes", MetricType::kGauge,
                                             "pool",
                                             "Bytes that transfers may reserve; shm: of regions."};
inline constexpr MetricSpec kDeviceInfo{"kvbridge_device_info", MetricType::kGauge, "device,kind",
                                        "1 per device that maps, and what it is."};
inline constexpr MetricSpec kDeviceErrors{"kvbridge_device_errors_total", MetricType::kCounter,
                                          "device,kind",
                                          "Transfers that a device failed: oom, error."};
inline constexpr MetricSpec kPlans{"kvbridge_plans_total", MetricType::kCounter, "result",
                                   "Plan calls by answer."};
inline constexpr MetricSpec kState{"kvbridge_state", MetricType::kGauge, "state",
                                   "One-hot state of the server."};
inline constexpr MetricSpec kConfigReloadSuccessful{"kvbridge_config_last_reload_successful",
                                                    MetricType::kGauge, "",
                                                    "Whether the last read of the configuration "
                                                    "succeeded."};
inline constexpr MetricSpec kConfigReloadTimestamp{
    "kvbridge_config_last_reload_success_timestamp_seconds", MetricType::kGauge, "",
    "When the configuration in use was read, Unix time."};
inline constexpr MetricSpec kConfigReloads{"kvbridge_config_reloads_total", MetricType::kCounter,
                                           "result", "Reads of the configuration after the first."};
inline constexpr MetricSpec kCertificateExpiry{
    "kvbridge_tls_certificate_expiry_timestamp_seconds", MetricType::kGauge, "role",
    "When the first certificate of the file in use expires, Unix time; no series without one."};
inline constexpr MetricSpec kAuthFailures{"kvbridge_auth_failures_total", MetricType::kCounter,
                                          "reason", "Calls refused for who made them."};
inline constexpr MetricSpec kCircuitState{"kvbridge_route_circuit_state", MetricType::kGauge,
                                          "pair,state", "One-hot state of the circuit breaker."};
inline constexpr MetricSpec kCircuitOpened{"kvbridge_route_circuit_opened_total",
                                           MetricType::kCounter, "pair",
                                           "Times that the circuit breaker opened."};
inline constexpr MetricSpec kQualityProbes{
    "kvbridge_quality_probes_total", MetricType::kCounter, "pair,result",
    "Reports of quality that were asked for, or came, by what became of them."};
inline constexpr MetricSpec kQualityKl{"kvbridge_quality_probe_kl_nats", MetricType::kHistogram,
                                       "pair", "Mean KL of one report, nats."};
inline constexpr MetricSpec kQualityThreshold{
    "kvbridge_quality_threshold_nats", MetricType::kGauge, "pair",
    "Mean KL above which the route is worse than its evidence; 0 when there is no evidence."};
inline constexpr MetricSpec kStepBacks{"kvbridge_route_step_backs_total", MetricType::kCounter,
                                       "pair", "Stages that the route was taken back by itself."};
inline constexpr MetricSpec kEvents{"kvbridge_events_total", MetricType::kCounter, "sink,result",
                                    "Decision events by what became of them."};
inline constexpr MetricSpec kEventsDropped{
    "kvbridge_events_dropped_total", MetricType::kCounter, "sink",
    "Decision events and log lines lost: a full queue, or no "
    "room where they go."};
inline constexpr MetricSpec kSeriesOverflow{
    "kvbridge_metric_series_overflow_total", MetricType::kCounter, "metric",
    "Pairs that were folded into `_other` because 64 have series of their own."};
inline constexpr MetricSpec kGrpcStarted{"grpc_server_started_total", MetricType::kCounter,
                                         "grpc_service,grpc_method,grpc_type",
                                         "RPCs started on the server."};
inline constexpr MetricSpec kGrpcHandled{"grpc_server_handled_total", MetricType::kCounter,
                                         "grpc_service,grpc_method,grpc_type,grpc_code",
                                         "RPCs completed on the server, by code."};
inline constexpr MetricSpec kGrpcHandling{"grpc_server_handling_seconds", MetricType::kHistogram,
                                          "grpc_service,grpc_method,grpc_type",
                                          "Seconds of RPCs on the server."};
inline constexpr MetricSpec kProcessCpu{"process_cpu_seconds_total", MetricType::kCounter, "",
                                        "User and system CPU time, seconds."};
inline constexpr MetricSpec kProcessResident{"process_resident_memory_bytes", MetricType::kGauge,
                                             "", "Resident memory, bytes."};
inline constexpr MetricSpec kProcessVirtual{"process_virtual_memory_bytes", MetricType::kGauge, "",
                                            "Virtual memory, bytes."};
inline constexpr MetricSpec kProcessOpenFds{"process_open_fds", MetricType::kGauge, "",
                                            "Open file descriptors."};
inline constexpr MetricSpec kProcessMaxFds{"process_max_fds", MetricType::kGauge, "",
                                           "Most file descriptors that may be open."};
inline constexpr MetricSpec kProcessThreads{"process_threads", MetricType::kGauge, "",
                                            "Threads of the process."};
inline constexpr MetricSpec kProcessStart{"process_start_time_seconds", MetricType::kGauge, "",
                                          "When the process started, Unix time."};

inline constexpr MetricSpec kAllMetrics[] = {kBuildInfo,
                                             kArtifactInfo,
                                             kTransfers,
                                             kFallbacks,
                                             kTransferDuration,
                                             kStageDuration,
                                             kTransferTokens,
                                             kTokens,
                                             kAvoidedPrefillTokens,
                                             kPayloadBytes,
                                             kInflight,
                                             kQueueDepth,
                                             kQueueLimit,
                                             kMappedMaxAbs,
                                             kArtifactLoads,
                                             kArtifactLoadDuration,
                                             kArtifactBytes,
                                             kArtifactFitR2,
                                             kUnprovenRoutes,
                                             kDrillShare,
                                             kMemoryPoolUsed,
                                             kMemoryPoolLimit,
                                             kDeviceInfo,
                                             kDeviceErrors,
                                             kPlans,
                                             kState,
                                             kConfigReloadSuccessful,
                                             kConfigReloadTimestamp,
                                             kConfigReloads,
                                             kCertificateExpiry,
                                             kAuthFailures,
                                             kCircuitState,
                                             kCircuitOpened,
                                             kQualityProbes,
                                             kQualityKl,
                                             kQualityThreshold,
                                             kStepBacks,
                                             kEvents,
                                             kEventsDropped,
                                             kSeriesOverflow,
                                             kGrpcStarted,
                                             kGrpcHandled,
                                             kGrpcHandling,
                                             kProcessCpu,
                                             kProcessResident,
                                             kProcessVirtual,
                                             kProcessOpenFds,
                                             kProcessMaxFds,
                                             kProcessThreads,
                                             kProcessStart};

}  // namespace kvbridge::metrics
