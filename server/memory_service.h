// The Memory service. OpenSession is a stream of its own (memory_session.h). What maps, fills or
// unmaps gigabytes runs one after the other on a task thread; the rest answers at once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/memory/memory_registry.h"
#include "core/metrics/server_metrics.h"
#include "kvbridge/v1/memory.grpc.pb.h"
#include "server/decision_recorder.h"
#include "server/memory_session.h"
#include "server/task_thread.h"

namespace kvbridge::server {

// Methods that the service counts.
std::vector<metrics::RpcMethod> MemoryMethods();

// Thread contract: gRPC calls from any of its threads.
class MemoryService final : public v1::Memory::CallbackService {
 public:
  struct Deps {  // borrowed
    memory::MemoryRegistry* registry = nullptr;
    TaskThread* tasks = nullptr;
    DecisionRecorder* recorder = nullptr;
    const base::Clock* clock = nullptr;
  };
  explicit MemoryService(Deps deps) : deps_(deps) {}

  // Ends every session with UNAVAILABLE; none begins from now on. Any thread.
  void EndSessions();

  grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>* OpenSession(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* RegisterRegion(grpc::CallbackServerContext* context,
                                           const v1::RegisterRegionRequest* request,
                                           v1::RegisterRegionResponse* response) override;
  grpc::ServerUnaryReactor* RegisterPool(grpc::CallbackServerContext* context,
                                         const v1::RegisterPoolRequest* request,
                                         v1::RegisterPoolResponse* response) override;
  grpc::ServerUnaryReactor* Unregister(grpc::CallbackServerContext* context,
                                       const v1::UnregisterRequest* request,
                                       v1::UnregisterResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;

 private:
  // `work` is called with the caller's tenant. Requests and responses live until the call is
  // finished.
  using Work = std::function<absl::Status(absl::string_view tenant)>;
  grpc::ServerUnaryReactor* OnTaskThread(const char* method, grpc::CallbackServerContext* context,
                                         const std::string& session_id, Work work);
  absl::Status SessionBegan(const std::shared_ptr<MemorySession>& session);
  // What the session stated when it began; empty for a session that is not.
  std::string StatedTenant(const std::string& session_id) const;

  const Deps deps_;
  mutable base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<MemorySession>> sessions_ ABSL_GUARDED_BY(mutex_);  // by id
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvbridge::server
