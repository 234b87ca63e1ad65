// The KvBridge service. Transfer is a session of its own (transfer_session.h); the rest answer at
// once from what is in memory.
#pragma once

#include <string>

#include "core/metrics/server_metrics.h"
#include "kvbridge/v1/transfer.grpc.pb.h"
#include "server/event_hub.h"
#include "server/expected_reports.h"
#include "server/server_state.h"
#include "server/transfer_session.h"

namespace kvbridge::server {

// Calls and behaviours of kvbridge.v1 that this version serves, beside the ones that every version
// does. A call that is missing here is answered UNIMPLEMENTED.
inline constexpr absl::string_view kFeatures[] = {"inline", "shadow",        "canary",
                                                  "append", "ReportQuality", "WatchEvents"};
// With a region plane.
inline constexpr absl::string_view kRegions = "regions";
// With regions that some tenant may register by name.
inline constexpr absl::string_view kNamedShm = "named_shm";

// Methods that the service counts.
std::vector<metrics::RpcMethod> KvBridgeMethods();

using KvBridgeBase =
    v1::KvBridge::WithRawCallbackMethod_Transfer<v1::KvBridge::WithCallbackMethod_Plan<
        v1::KvBridge::WithCallbackMethod_Health<v1::KvBridge::WithCallbackMethod_GetCapabilities<
            v1::KvBridge::WithCallbackMethod_ReportQuality<
                v1::KvBridge::WithCallbackMethod_WatchEvents<v1::KvBridge::Service>>>>>>;

// Thread contract: gRPC calls from any of its threads; no method blocks.
class KvBridgeService final : public KvBridgeBase {
 public:
  struct Deps {  // borrowed
    TransferEnv transfers;
    const ServerState* state = nullptr;
    metrics::ServerMetrics* metrics = nullptr;
    EventHub* events = nullptr;
    ExpectedReports* reports = nullptr;
    std::string version;
    std::string backend;
    std::string memory_socket;  // empty: no region plane
    bool named_shm = false;
  };
  explicit KvBridgeService(Deps deps) : deps_(std::move(deps)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Transfer(
      grpc::CallbackServerContext* context) override {
    return TransferSession::Start(deps_.transfers, context);
  }
  grpc::ServerUnaryReactor* Plan(grpc::CallbackServerContext* context,
                                 const v1::PlanRequest* request,
                                 v1::PlanResponse* response) override;
  grpc::ServerUnaryReactor* Health(grpc::CallbackServerContext* context,
                                   const v1::HealthRequest* request,
                                   v1::HealthResponse* response) override;
  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context,
                                            const v1::GetCapabilitiesRequest* request,
                                            v1::GetCapabilitiesResponse* response) override;
  grpc::ServerUnaryReactor* ReportQuality(grpc::CallbackServerContext* context,
                                          const v1::ReportQualityRequest* request,
                                          v1::ReportQualityResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchEventsResponse>* WatchEvents(
      grpc::CallbackServerContext* context, const v1::WatchEventsRequest* request) override;

 private:
  absl::Status TakeReport(const v1::ReportQualityRequest& request);
  absl::Status MakePlan(const v1::PlanRequest& request, v1::PlanResponse* response) const;

  const Deps deps_;
};

}  // namespace kvbridge::server
