#include "server/kv_bridge_service.h"

#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"

#include "core/base/exact.h"
#include "core/base/status_macros.h"
#include "core/plan/transfer_plan.h"
#include "server/address.h"
#include "server/unary.h"

namespace kvbridge::server {
namespace {

constexpr const char* kService = "kvbridge.v1.KvBridge";

metrics::RpcMethod Method(const char* name) { return {kService, name, "unary"}; }

// However old it is: a plan is advice, and the last rate seen says more than none. Only an estimate
// that refuses a transfer has to be fresh.
std::optional<double> PerUnit(const std::optional<engine::Rate>& rate) {
  if (!rate.has_value()) return std::nullopt;
  return rate->seconds_per_unit;
}

v1::RouteHealth ToHealth(const RouteSnapshot& route) {
  v1::RouteHealth out;
  out.set_route(route.name);
  out.set_stage(ToProto(route.policy.stage));
  out.set_serving(route.serving());
  out.set_circuit(static_cast<v1::CircuitState>(static_cast<int>(route.watch->circuit()) + 1));
  if (!route.serving()) {
    out.set_detail(route.WhyNot().detail);
    return out;
  }
  out.set_artifact_digest(route.loaded->mapper().digest);
  out.set_verdict(std::string(artifact::Name(route.loaded->provenance.verdict())));
  out.set_detail(route.Caveats());
  return out;
}

}  // namespace

std::vector<metrics::RpcMethod> KvBridgeMethods() {
  return {{kService, "Transfer", "bidi_stream"},
          Method("Plan"),
          Method("Health"),
          Method("GetCapabilities"),
          Method("ReportQuality"),
          {kService, "WatchEvents", "server_stream"}};
}

grpc::ServerUnaryReactor* KvBridgeService::Plan(grpc::CallbackServerContext* context,
                                                const v1::PlanRequest* request,
                                                v1::PlanResponse* response) {
  const UnaryCall call(deps_.transfers.recorder, deps_.transfers.clock, Method("Plan"), context);
  const absl::Status status = MakePlan(*request, response);
  if (status.ok()) deps_.metrics->Planned(response->worth_it());
  return call.Finish(status);
}

absl::Status KvBridgeService::MakePlan(const v1::PlanRequest& request,
                                       v1::PlanResponse* response) const {
  KVB_ASSIGN_OR_RETURN(const RouteSnapshot route, deps_.transfers.routes->Get(request.route()));
  const bool region = request.plane() == v1::PLANE_REGION;
  if (region && deps_.memory_socket.empty()) {
    return absl::UnimplementedError("plane: this server has no region plane (memory.socket)");
  }
  if (!route.serving()) {
    response->set_reason(ToProto(route.WhyNot().reason));
    response->set_detail(route.WhyNot().detail);
    return absl::OkStatus();
  }
  const mapper::Mapper& mapper = route.loaded->mapper();
  const engine::RateMeter& rates = deps_.transfers.engine->rates();
  // What lies in regions is read and written by the map itself.
  const auto move = [&](absl::string_view key) {
    return region ? std::optional(0.0) : PerUnit(rates.Fastest(key));
  };
  KVB_ASSIGN_OR_RETURN(
      const plan::TransferPlan plan,
      plan::MakeTransferPlan({.prompt_tokens = request.prompt_tokens(),
                              .native_tail = request.native_tail(),
                              .prefill_tokens_per_second = request.prefill_tokens_per_second(),
                              .proven = route.proven(),
                              .map_seconds_per_token = PerUnit(rates.Get(mapper.digest)),
                              .ingress_seconds_per_byte = move(kInlineIn),
                              .egress_seconds_per_byte = move(kInlineOut)},
                             mapper, route.policy));
  *response = ToProto(plan);
  *response->mutable_evidence() = ToProto(route.loaded->provenance, request.native_tail());
  response->set_artifact_digest(mapper.digest);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* KvBridgeService::Health(grpc::CallbackServerContext* context,
                                                  const v1::HealthRequest* request,
                                                  v1::HealthResponse* response) {
  const UnaryCall call(deps_.transfers.recorder, deps_.transfers.clock, Method("Health"), context);
  response->set_state(deps_.state->state());
  response->set_version(deps_.version);
  if (request->route().empty()) {
    for (const RouteSnapshot& route : deps_.transfers.routes->All()) {
      *response->add_routes() = ToHealth(route);
    }
    return call.Finish(absl::OkStatus());
  }
  const auto route = deps_.transfers.routes->Get(request->route());
  if (route.ok()) *response->add_routes() = ToHealth(*route);
  return call.Finish(route.status());
}

grpc::ServerUnaryReactor* KvBridgeService::GetCapabilities(grpc::CallbackServerContext* context,
                                                           const v1::GetCapabilitiesRequest*,
                                                           v1::GetCapabilitiesResponse* response) {
  const UnaryCall call(deps_.transfers.recorder, deps_.transfers.clock, Method("GetCapabilities"),
                       context);
  const engine::TransferEngine& engine = *deps_.transfers.engine;
  response->set_version(deps_.version);
  response->set_backend(deps_.backend);
  for (const absl::string_view feature : kFeatures) response->add_features(std::string(feature));
  for (const RouteSnapshot& route : deps_.transfers.routes->All()) {
    v1::RouteInfo& info = *response->add_routes();
    info.set_route(route.name);
    info.set_stage(ToProto(route.policy.stage));
    if (!route.serving()) continue;
    const mapper::Mapper& mapper = route.loaded->mapper();
    *info.mutable_source() = ToProto(mapper.source);
    *info.mutable_target() = ToProto(mapper.target);
    info.set_artifact_digest(mapper.digest);
  }
  for (const auto type : {v1::ELEMENT_TYPE_BF16, v1::ELEMENT_TYPE_F16, v1::ELEMENT_TYPE_F32,
                          v1::ELEMENT_TYPE_F8_E4M3}) {
    response->add_element_types(type);
  }
  response->add_planes(v1::PLANE_INLINE);
  const Peers& peers = *deps_.transfers.peers;
  if (!peers.push_address().empty()) response->add_planes(v1::PLANE_UCX);
  for (std::string& name : peers.names()) response->add_peers(std::move(name));
  // Descriptors travel on this host only.
  if (!deps_.memory_socket.empty() && IsLocalPeer(context->peer())) {
    response->add_features(std::string(kRegions));
    if (deps_.named_shm) response->add_features(std::string(kNamedShm));
    response->add_planes(v1::PLANE_REGION);
    response->set_memory_socket(deps_.memory_socket);
  }
  response->set_max_tokens(engine.admission().limits().max_tokens);
  response->set_max_request_bytes(
      static_cast<int64_t>(engine.admission().limits().max_request_bytes));
  response->set_max_chunk_bytes(kMaxChunkBytes);
  response->set_tile_tokens(engine.tile_tokens());
  return call.Finish(absl::OkStatus());
}

grpc::ServerUnaryReactor* KvBridgeService::ReportQuality(grpc::CallbackServerContext* context,
                                                         const v1::ReportQualityRequest* request,
                                                         v1::ReportQualityResponse*) {
  const UnaryCall call(deps_.transfers.recorder, deps_.transfers.clock, Method("ReportQuality"),
                       context);
  const absl::Status taken = TakeReport(*request);
  if (!taken.ok()) {
    deps_.metrics->operations().QualityRefused(deps_.metrics->Pair(request->route()));
  }
  return call.Finish(taken);
}

absl::Status KvBridgeService::TakeReport(const v1::ReportQualityRequest& request) {
  const auto number = [](const char* field, double value, double least, double most) {
    if (value >= least && value <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected ", least, " to ", most, ", got ", base::Exact(value)));
  };
  constexpr double kMost = std::numeric_limits<double>::max();
  KVB_RETURN_IF_ERROR(number("kl_nats", request.kl_nats(), 0, kMost));
  KVB_RETURN_IF_ERROR(number("top1_agreement", request.top1_agreement(), 0, 1));
  KVB_RETURN_IF_ERROR(number("nll_delta", request.nll_delta(), -kMost, kMost));
  KVB_RETURN_IF_ERROR(number("positions", request.positions(), 1, kMost));
  KVB_RETURN_IF_ERROR(deps_.transfers.routes->Get(request.route()).status());
  if (!deps_.reports->Take(request.request_id(), request.route())) {
    return absl::NotFoundError(
        "request_id: expected a recent transfer that was shadow_selected and not reported yet");
  }
  return deps_.transfers.routes->ReportQuality(request.route(), request.artifact_digest(),
                                               request.kl_nats(), 1 - request.top1_agreement());
}

grpc::ServerWriteReactor<v1::WatchEventsResponse>* KvBridgeService::WatchEvents(
    grpc::CallbackServerContext*, const v1::WatchEventsRequest* request) {
  return deps_.events->Watch(request->route());
}

}  // namespace kvbridge::server
