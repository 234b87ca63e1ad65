// The Admin service: what an operator may change. Callers on other hosts need a grant (auth.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/base/clock.h"
#include "core/metrics/server_metrics.h"
#include "kvbridge/v1/admin.grpc.pb.h"
#include "server/decision_recorder.h"
#include "server/route_table.h"
#include "server/task_thread.h"

namespace kvbridge::server {

std::vector<metrics::RpcMethod> AdminMethods();

// Thread contract: gRPC calls from any of its threads; loads run on the task thread.
class AdminService final : public v1::Admin::CallbackService {
 public:
  struct Deps {  // borrowed
    RouteTable* routes = nullptr;
    TaskThread* tasks = nullptr;
    DecisionRecorder* recorder = nullptr;
    const base::Clock* clock = nullptr;
    std::function<void()> drain;
  };
  explicit AdminService(Deps deps) : deps_(std::move(deps)) {}

  grpc::ServerUnaryReactor* LoadArtifact(grpc::CallbackServerContext* context,
                                         const v1::LoadArtifactRequest* request,
                                         v1::LoadArtifactResponse* response) override;
  grpc::ServerUnaryReactor* UnloadArtifact(grpc::CallbackServerContext* context,
                                           const v1::UnloadArtifactRequest* request,
                                           v1::UnloadArtifactResponse* response) override;
  grpc::ServerUnaryReactor* ListArtifacts(grpc::CallbackServerContext* context,
                                          const v1::ListArtifactsRequest* request,
                                          v1::ListArtifactsResponse* response) override;
  grpc::ServerUnaryReactor* SetRoute(grpc::CallbackServerContext* context,
                                     const v1::SetRouteRequest* request,
                                     v1::SetRouteResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

 private:
  // Runs `work` on the task thread when the peer may ask for it. Requests and responses live until
  // the call is finished.
  grpc::ServerUnaryReactor* OnTaskThread(const char* method, grpc::CallbackServerContext* context,
                                         std::function<absl::Status()> work);

  const Deps deps_;
};

}  // namespace kvbridge::server
