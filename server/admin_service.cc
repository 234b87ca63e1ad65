#include "server/admin_service.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "server/address.h"
#include "server/convert.h"
#include "server/guarded_port.h"
#include "server/unary.h"

namespace kvbridge::server {
namespace {

constexpr const char* kService = "kvbridge.v1.Admin";

metrics::RpcMethod Method(const char* name) { return {kService, name, "unary"}; }

v1::ArtifactInfo ToInfo(const RouteSnapshot& route) {
  v1::ArtifactInfo info;
  info.set_route(route.name);
  if (!route.last_error.ok()) info.set_last_error(base::ValidUtf8(route.last_error.message()));
  if (!route.serving()) return info;
  info.set_digest(route.loaded->mapper().digest);
  info.set_resident_bytes(static_cast<int64_t>(route.loaded->resident->resident_bytes()));
  info.set_verdict(std::string(artifact::Name(route.loaded->provenance.verdict())));
  info.set_load_seconds(absl::ToDoubleSeconds(route.loaded->load_time));
  return info;
}

absl::StatusOr<guard::CircuitOverride> ToOverride(v1::CircuitOverride override) {
  switch (override) {
    case v1::CIRCUIT_OVERRIDE_AUTO:
      return guard::CircuitOverride::kAuto;
    case v1::CIRCUIT_OVERRIDE_FORCE_CLOSED:
      return guard::CircuitOverride::kForceClosed;
    case v1::CIRCUIT_OVERRIDE_FORCE_OPEN:
      return guard::CircuitOverride::kForceOpen;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("circuit: expected an override, got ", static_cast<int>(override)));
  }
}

}  // namespace

std::vector<metrics::RpcMethod> AdminMethods() {
  return {Method("LoadArtifact"), Method("UnloadArtifact"), Method("ListArtifacts"),
          Method("SetRoute"), Method("Drain")};
}

grpc::ServerUnaryReactor* AdminService::OnTaskThread(const char* method,
                                                     grpc::CallbackServerContext* context,
                                                     std::function<absl::Status()> work) {
  const UnaryCall call(deps_.recorder, deps_.clock, Method(method), context);
  // A grant was asked for where any is configured.
  if (!GrantedTenant(*context).has_value() && !IsLocalPeer(context->peer())) {
    deps_.recorder->AuthFailed("not_local");
    return call.Finish(absl::PermissionDeniedError("Admin is served to this host only"));
  }
  const absl::Status posted =
      deps_.tasks->Post([call, work = std::move(work)] { call.Finish(work()); });
  return posted.ok() ? call.reactor() : call.Finish(posted);
}

grpc::ServerUnaryReactor* AdminService::LoadArtifact(grpc::CallbackServerContext* context,
                                                     const v1::LoadArtifactRequest* request,
                                                     v1::LoadArtifactResponse* response) {
  return OnTaskThread("LoadArtifact", context, [this, request, response]() -> absl::Status {
    KVB_RETURN_IF_ERROR(deps_.routes->Load(request->route(), request->path()));
    KVB_ASSIGN_OR_RETURN(const RouteSnapshot route, deps_.routes->Get(request->route()));
    *response->mutable_artifact() = ToInfo(route);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::UnloadArtifact(grpc::CallbackServerContext* context,
                                                       const v1::UnloadArtifactRequest* request,
                                                       v1::UnloadArtifactResponse*) {
  return OnTaskThread("UnloadArtifact", context,
                      [this, request] { return deps_.routes->Unload(request->route()); });
}

grpc::ServerUnaryReactor* AdminService::ListArtifacts(grpc::CallbackServerContext* context,
                                                      const v1::ListArtifactsRequest*,
                                                      v1::ListArtifactsResponse* response) {
  return OnTaskThread("ListArtifacts", context, [this, response] {
    for (const RouteSnapshot& route : deps_.routes->All()) {
      *response->add_artifacts() = ToInfo(route);
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::SetRoute(grpc::CallbackServerContext* context,
                                                 const v1::SetRouteRequest* request,
                                                 v1::SetRouteResponse* response) {
  return OnTaskThread("SetRoute", context, [this, request, response]() -> absl::Status {
    KVB_ASSIGN_OR_RETURN(const RouteSnapshot now, deps_.routes->Get(request->route()));
    response->set_previous(ToProto(now.policy.stage));
    if (request->circuit() == v1::CIRCUIT_OVERRIDE_UNSPECIFIED ||
        request->stage() != v1::ROUTE_STAGE_UNSPECIFIED) {
      KVB_ASSIGN_OR_RETURN(const guard::RouteStage stage, ToStage(request->stage(), "stage"));
      KVB_RETURN_IF_ERROR(
          deps_.routes->SetStage(now.name, stage, request->canary_share()).status());
    }
    if (request->circuit() == v1::CIRCUIT_OVERRIDE_UNSPECIFIED) return absl::OkStatus();
    KVB_ASSIGN_OR_RETURN(const guard::CircuitOverride override, ToOverride(request->circuit()));
    return deps_.routes->OverrideCircuit(now.name, override);
  });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest*, v1::DrainResponse*) {
  return OnTaskThread("Drain", context, [this] {
    deps_.drain();
    return absl::OkStatus();
  });
}

}  // namespace kvbridge::server
