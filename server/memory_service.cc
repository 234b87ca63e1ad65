#include "server/memory_service.h"

#include <utility>

#include "core/base/status_macros.h"
#include "server/convert_memory.h"
#include "server/tenant.h"
#include "server/unary.h"

namespace kvbridge::server {
namespace {

constexpr const char* kService = "kvbridge.v1.Memory";

metrics::RpcMethod Method(const char* name) { return {kService, name, "unary"}; }

absl::Status Stopping() { return absl::UnavailableError("the server is shutting down"); }

}  // namespace

std::vector<metrics::RpcMethod> MemoryMethods() {
  return {{kService, "OpenSession", "bidi_stream"},
          Method("RegisterRegion"),
          Method("RegisterPool"),
          Method("Unregister"),
          Method("List")};
}

grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>*
MemoryService::OpenSession(grpc::CallbackServerContext* context) {
  return MemorySession::Start(
      {.registry = deps_.registry,
       .recorder = deps_.recorder,
       .clock = deps_.clock,
       .on_begin = [this](const auto& session) { return SessionBegan(session); },
       .on_end =
           [this](const std::string& id) {
             base::MutexLock lock(&mutex_);
             sessions_.erase(id);
           }},
      context);
}

absl::Status MemoryService::SessionBegan(const std::shared_ptr<MemorySession>& session) {
  base::MutexLock lock(&mutex_);
  if (ending_) return Stopping();
  sessions_[session->id()] = session;
  return absl::OkStatus();
}

void MemoryService::EndSessions() {
  std::map<std::string, std::weak_ptr<MemorySession>> sessions;
  {
    base::MutexLock lock(&mutex_);
    ending_ = true;
    sessions = sessions_;
  }
  for (const auto& [id, weak] : sessions) {
    if (const auto session = weak.lock()) session->End(Stopping());
  }
}

std::string MemoryService::StatedTenant(const std::string& session_id) const {
  base::MutexLock lock(&mutex_);
  const auto it = sessions_.find(session_id);
  const auto session = it == sessions_.end() ? nullptr : it->second.lock();
  return session == nullptr ? "" : session->tenant();
}

grpc::ServerUnaryReactor* MemoryService::OnTaskThread(const char* method,
                                                      grpc::CallbackServerContext* context,
                                                      const std::string& session_id, Work work) {
  const UnaryCall call(deps_.recorder, deps_.clock, Method(method), context);
  const absl::Status posted = deps_.tasks->Post(
      [call, work = std::move(work), tenant = TenantOf(*context, StatedTenant(session_id))] {
        call.Finish(work(tenant));
      });
  return posted.ok() ? call.reactor() : call.Finish(posted);
}

grpc::ServerUnaryReactor* MemoryService::RegisterRegion(grpc::CallbackServerContext* context,
                                                        const v1::RegisterRegionRequest* request,
                                                        v1::RegisterRegionResponse* response) {
  return OnTaskThread("RegisterRegion", context, request->session_id(),
                      [this, request, response](absl::string_view tenant) -> absl::Status {
                        KVB_ASSIGN_OR_RETURN(
                            const memory::RegionGrant grant,
                            deps_.registry->RegisterRegion(tenant, request->session_id(),
                                                           ToRegionRequest(*request)));
                        *response = ToProto(grant);
                        return absl::OkStatus();
                      });
}

grpc::ServerUnaryReactor* MemoryService::RegisterPool(grpc::CallbackServerContext* context,
                                                      const v1::RegisterPoolRequest* request,
                                                      v1::RegisterPoolResponse* response) {
  return OnTaskThread("RegisterPool", context, request->session_id(),
                      [this, request, response](absl::string_view tenant) -> absl::Status {
                        KVB_ASSIGN_OR_RETURN(memory::PoolSpec spec, ToPoolSpec(*request));
                        KVB_ASSIGN_OR_RETURN(const memory::PoolGrant grant,
                                             deps_.registry->RegisterPool(
                                                 tenant, request->session_id(), std::move(spec)));
                        *response = ToProto(grant);
                        return absl::OkStatus();
                      });
}

grpc::ServerUnaryReactor* MemoryService::Unregister(grpc::CallbackServerContext* context,
                                                    const v1::UnregisterRequest* request,
                                                    v1::UnregisterResponse* response) {
  return OnTaskThread("Unregister", context, request->session_id(),
                      [this, request, response](absl::string_view tenant) -> absl::Status {
                        KVB_ASSIGN_OR_RETURN(const bool draining,
                                             deps_.registry->Unregister(
                                                 tenant, request->session_id(), request->id()));
                        response->set_draining(draining);
                        return absl::OkStatus();
                      });
}

grpc::ServerUnaryReactor* MemoryService::List(grpc::CallbackServerContext* context,
                                              const v1::ListRequest* request,
                                              v1::ListResponse* response) {
  const UnaryCall call(deps_.recorder, deps_.clock, Method("List"), context);
  const auto owned = deps_.registry->List(TenantOf(*context, StatedTenant(request->session_id())),
                                          request->session_id());
  if (owned.ok()) *response = ToProto(*owned);
  return call.Finish(owned.status());
}

}  // namespace kvbridge::server
