#include "nlohmann/json.hpp"
#include "server/status_page.h"

namespace kvbridge::server {
namespace {

using nlohmann::json;

std::string Utc(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

json ToJson(const DecisionCounts& counts) {
  return {{"applied", counts.applied}, {"fell_back", counts.fell_back}, {"tokens", counts.tokens}};
}

json ToJson(const RouteStatus& route, const DecisionCounts& minute) {
  return {{"route", route.name},
          {"stage", route.stage},
          {"canary_share", route.canary_share},
          {"circuit", route.circuit},
          {"artifact", route.artifact},
          {"verdict", route.verdict},
          {"source", route.source},
          {"target", route.target},
          {"resident_bytes", route.resident_bytes},
          {"detail", route.note},
          {"minute", ToJson(minute)}};
}

json ToJson(const FallbackStatus& fallback) {
  return {{"time", Utc(fallback.time)}, {"route", fallback.route},
          {"reason", fallback.reason},  {"class", fallback.reason_class},
          {"detail", fallback.detail},  {"request_id", fallback.request_id}};
}

json ToJson(const ChangeStatus& change) {
  return {{"time", Utc(change.time)}, {"route", change.route}, {"what", change.what},
          {"from", change.from},      {"to", change.to},       {"cause", change.cause},
          {"detail", change.detail}};
}

json ToJson(const PoolStatus& pool) {
  return {{"name", pool.name}, {"used_bytes", pool.used_bytes}, {"limit_bytes", pool.limit_bytes}};
}

json ToJson(const CertificateStatus& certificate) {
  return {{"role", certificate.role}, {"expires", Utc(certificate.expires)}};
}

template <typename T>
json ListOf(const std::vector<T>& items) {
  json list = json::array();
  for (const T& item : items) list.push_back(ToJson(item));
  return list;
}

json Routes(const Status& status) {
  json list = json::array();
  for (const RouteStatus& route : status.routes) {
    const auto minute = status.minute.routes.find(route.name);
    list.push_back(
        ToJson(route, minute == status.minute.routes.end() ? DecisionCounts() : minute->second));
  }
  return list;
}

}  // namespace

std::string StatusJson(const Status& status) {
  const json document = {
      {"schema", "kvbridge.status/v1"},
      {"time", Utc(status.now)},
      {"started", Utc(status.started)},
      {"state", status.state},
      {"why", status.why},
      {"host", status.host},
      {"version", status.version},
      {"revision", status.revision},
      {"backend", status.backend},
      {"routes", Routes(status)},
      {"minute", ToJson(status.minute.total)},
      {"minute_seconds", absl::ToDoubleSeconds(status.counted())},
      {"applied_ms",
       {{"samples", status.latency.samples},
        {"p50", status.latency.p50_ms},
        {"p99", status.latency.p99_ms}}},
      {"inflight", {{"transfers", status.inflight_transfers}, {"limit", status.inflight_limit}}},
      {"queue", {{"tiles", status.queued}, {"limit", status.queue_limit}}},
      {"memory", ListOf(status.pools)},
      {"fallbacks", ListOf(status.fallbacks)},
      {"changes", ListOf(status.changes)},
      {"tls", status.tls},
      {"certificates", ListOf(status.certificates)}};
  // Model ids and details may hold any bytes.
  return document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace kvbridge::server
