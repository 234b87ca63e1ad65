// What the server is to the outside: starting, ready, degraded or draining. The one answer behind
// /readyz, grpc.health.v1, Health and the kvbridge_state metric.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"

#include "core/base/mutex.h"
#include "core/metrics/server_metrics.h"
#include "grpcpp/health_check_service_interface.h"
#include "kvbridge/v1/transfer.pb.h"
#include "server/admin_http.h"
#include "server/log.h"
#include "server/route_table.h"

namespace kvbridge::server {

// "starting", "ready", "degraded", "draining".
std::string StateWord(v1::ServerState state);

// Thread contract: every method may be called from any thread.
class ServerState {
 public:
  ServerState(const RouteTable* routes, metrics::ServerMetrics* metrics, Log* log);

  // `health` is the own service of one gRPC server; borrowed.
  void ServeHealth(grpc::HealthCheckServiceInterface* health);
  // The first load of every route has ended, well or not.
  void Started();
  // Looks at the routes again.
  void Refresh();
  // For good.
  void Draining();

  v1::ServerState state() const;
  // Ready unless starting or draining, or when no enabled route serves.
  Verdict ready() const;

 private:
  v1::ServerState Compute(const std::vector<RouteSnapshot>& routes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(const std::vector<RouteSnapshot>& routes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(grpc::HealthCheckServiceInterface* health,
            const std::vector<RouteSnapshot>& routes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RouteTable& routes_;
  metrics::ServerMetrics& metrics_;
  Log& log_;
  mutable base::Mutex mutex_;
  std::vector<grpc::HealthCheckServiceInterface*> health_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> told_ ABSL_GUARDED_BY(mutex_);  // services of routes
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  v1::ServerState state_ ABSL_GUARDED_BY(mutex_) = v1::SERVER_STATE_UNSPECIFIED;
};

}  // namespace kvbridge::server
