#include "server/server_state.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvbridge::server {
namespace {

std::string ServiceOf(const RouteSnapshot& route) {
  return absl::StrCat("kvbridge.route/", route.name);
}

bool Lacking(const RouteSnapshot& route) { return route.enabled() && !route.serving(); }

}  // namespace

std::string StateWord(v1::ServerState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::ServerState_Name(state), "SERVER_STATE_"));
}

ServerState::ServerState(const RouteTable* routes, metrics::ServerMetrics* metrics, Log* log)
    : routes_(*routes), metrics_(*metrics), log_(*log) {
  Refresh();
}

void ServerState::ServeHealth(grpc::HealthCheckServiceInterface* health) {
  {
    base::MutexLock lock(&mutex_);
    health_.push_back(health);
  }
  Refresh();
}

void ServerState::Started() {
  {
    base::MutexLock lock(&mutex_);
    started_ = true;
  }
  Refresh();
}

void ServerState::Draining() {
  {
    base::MutexLock lock(&mutex_);
    draining_ = true;
  }
  Refresh();
}

void ServerState::Refresh() {
  const std::vector<RouteSnapshot> routes = routes_.All();
  base::MutexLock lock(&mutex_);
  Publish(routes);
}

v1::ServerState ServerState::Compute(const std::vector<RouteSnapshot>& routes) const {
  if (draining_) return v1::SERVER_STATE_DRAINING;
  if (!started_) return v1::SERVER_STATE_STARTING;
  return std::any_of(routes.begin(), routes.end(), Lacking) ? v1::SERVER_STATE_DEGRADED
                                                            : v1::SERVER_STATE_READY;
}

void ServerState::Publish(const std::vector<RouteSnapshot>& routes) {
  const v1::ServerState state = Compute(routes);
  if (state != state_) {
    log_.Info("state changed", {{"from", StateWord(state_)}, {"to", StateWord(state)}});
    metrics_.StateIs(StateWord(state));
    state_ = state;
  }
  for (grpc::HealthCheckServiceInterface* health : health_) Tell(health, routes);
  told_.clear();
  for (const RouteSnapshot& route : routes) told_.push_back(ServiceOf(route));
}

void ServerState::Tell(grpc::HealthCheckServiceInterface* health,
                       const std::vector<RouteSnapshot>& routes) const {
  const bool up = !draining_;
  for (const std::string& service : told_) {
    const bool stays = std::any_of(routes.begin(), routes.end(), [&](const RouteSnapshot& route) {
      return ServiceOf(route) == service;
    });
    if (!stays) health->SetServingStatus(service, false);
  }
  for (const RouteSnapshot& route : routes) {
    health->SetServingStatus(ServiceOf(route), up && route.serving());
  }
  const bool answers = up && started_;
  for (const char* service : {"", "kvbridge.v1.KvBridge", "kvbridge.v1.Admin"}) {
    health->SetServingStatus(service, answers);
  }
}

v1::ServerState ServerState::state() const {
  base::MutexLock lock(&mutex_);
  return state_;
}

Verdict ServerState::ready() const {
  const std::vector<RouteSnapshot> routes = routes_.All();
  const v1::ServerState now = state();
  if (now == v1::SERVER_STATE_STARTING || now == v1::SERVER_STATE_DRAINING) {
    return {false, StateWord(now)};
  }
  const auto enabled = std::count_if(routes.begin(), routes.end(),
                                     [](const RouteSnapshot& r) { return r.enabled(); });
  if (enabled == 0 || enabled > std::count_if(routes.begin(), routes.end(), Lacking)) return {};
  Verdict verdict{false, "degraded: no enabled route serves"};
  for (const RouteSnapshot& route : routes) {
    if (Lacking(route)) absl::StrAppend(&verdict.why, "; ", route.name);
  }
  return verdict;
}

}  // namespace kvbridge::server
