#include "server/status_source.h"

#include <utility>
#include <vector>

#include <unistd.h>

#include "core/base/nearest_rank.h"
#include "core/guard/reason.h"
#include "core/metrics/process_collector.h"
#include "proto/kvbridge/v1/event_json.h"
#include "server/convert.h"
#include "server/status_page.h"
#include "server/version.h"

namespace kvbridge::server {
namespace {

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "this host";
}

std::string NoteOf(const RouteSnapshot& route) {
  if (!route.last_error.ok()) return std::string(route.last_error.message());
  if (!route.serving()) return "no artifact is loaded";
  return route.Caveats();
}

RouteStatus ToStatus(const RouteSnapshot& route) {
  RouteStatus status{.name = route.name,
                     .stage = std::string(guard::Name(route.policy.stage)),
                     .canary_share = route.policy.canary_share,
                     .circuit = std::string(guard::Name(route.watch->circuit())),
                     .note = NoteOf(route)};
  if (!route.serving()) return status;
  const mapper::Mapper& mapper = route.loaded->mapper();
  status.artifact = mapper.digest.substr(0, 12);
  status.verdict = std::string(artifact::Name(route.loaded->provenance.verdict()));
  status.source = mapper.source.identity.model_id;
  status.target = mapper.target.identity.model_id;
  status.resident_bytes = route.loaded->resident->resident_bytes();
  return status;
}

FallbackStatus ToFallback(const v1::DecisionEvent& event) {
  const guard::Reason reason = FromProto(event.reason());
  return {.time = wire::TimeOf(event.time()),
          .route = event.pair(),
          .reason = std::string(guard::Name(reason)),
          .reason_class = std::string(guard::Name(guard::ClassOf(reason))),
          .detail = event.detail(),
          .request_id = event.request_id()};
}

ChangeStatus ToChange(const v1::RouteEvent& event) {
  return {.time = wire::TimeOf(event.time()),
          .route = event.pair(),
          .what = event.what(),
          .from = event.from(),
          .to = event.to(),
          .cause = event.cause(),
          .detail = event.detail()};
}

LatencyStatus ToLatency(const std::vector<double>& ms) {
  return {.samples = static_cast<int>(ms.size()),
          .p50_ms = base::NearestRank(ms, 0.5).value_or(0),
          .p99_ms = base::NearestRank(ms, 0.99).value_or(0)};
}

}  // namespace

Status StatusSource::Now() const {
  const Verdict ready = deps_.state->ready();
  const engine::Admission& admission = deps_.engine->admission();
  Status status{.now = deps_.clock->Now(),
                .started = started_,
                .state = StateWord(deps_.state->state()),
                .why = ready.why,
                .host = HostName(),
                .version = kVersion,
                .revision = kRevision,
                .backend = deps_.backend,
                .inflight_transfers = admission.inflight_transfers(),
                .inflight_limit = admission.limits().max_inflight_transfers,
                .queued = static_cast<int64_t>(deps_.engine->queued_units()),
                .queue_limit = deps_.queue_limit};
  status.minute = deps_.activity->LastMinute(status.now);
  AddRoutes(&status);
  AddEvents(&status);
  AddMemory(&status);
  AddCertificates(&status);
  return status;
}

std::string StatusSource::Page(const StatusView& view) const {
  return view.json ? StatusJson(Now()) : StatusHtml(Now(), view.refresh);
}

void StatusSource::AddRoutes(Status* status) const {
  for (const RouteSnapshot& route : deps_.routes->All()) {
    status->routes.push_back(ToStatus(route));
  }
}

void StatusSource::AddEvents(Status* status) const {
  std::vector<double> applied_ms;
  for (const v1::WatchEventsResponse& each : deps_.events->Recent()) {
    if (each.has_route_event()) {
      if (status->changes.size() < kChanges)
        status->changes.push_back(ToChange(each.route_event()));
    } else if (each.event().outcome() == v1::OUTCOME_APPLIED) {
      applied_ms.push_back(each.event().total_ms());
    } else if (status->fallbacks.size() < kFallbacks) {
      status->fallbacks.push_back(ToFallback(each.event()));
    }
  }
  status->latency = ToLatency(applied_ms);
}

void StatusSource::AddMemory(Status* status) const {
  const engine::Admission& admission = deps_.engine->admission();
  uint64_t weights = 0;
  for (const RouteStatus& route : status->routes) weights += route.resident_bytes;
  status->pools = {{.name = "transfers in flight",
                    .used_bytes = admission.inflight_bytes(),
                    .limit_bytes = admission.limits().max_inflight_bytes}};
  if (deps_.memory != nullptr) {
    status->pools.push_back({.name = "shared regions",
                             .used_bytes = deps_.memory->use().mapped_bytes,
                             .limit_bytes = deps_.region_limit_bytes});
  }
  status->pools.push_back({.name = "resident weights", .used_bytes = weights});
  status->pools.push_back({.name = "whole process", .used_bytes = metrics::ResidentBytes()});
}

void StatusSource::AddCertificates(Status* status) const {
  if (deps_.tls == nullptr) return;
  const TlsMaterial material = deps_.tls->material();
  status->tls = true;
  status->certificates = {{.role = "server", .expires = material.expires}};
  if (material.client_ca_expires.has_value()) {
    status->certificates.push_back(
        {.role = "client authority", .expires = *material.client_ca_expires});
  }
}

}  // namespace kvbridge::server
