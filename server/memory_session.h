// One OpenSession stream: a lease. Each message is a heartbeat and is answered with the session's
// terms. However the stream ends, and when a heartbeat is missed, all that the session owns is
// released first and the caller told then.
//
// A caller that does not read its answers is not read either, so its lease runs out.
//
// Threads: gRPC's threads call the On... methods, the alarm comes from its own. One mutex guards
// what they share; the registry is never called under it. Lifetime as TransferSession's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/memory/memory_registry.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "kvbridge/v1/memory.pb.h"
#include "server/decision_recorder.h"

namespace kvbridge::server {

class MemorySession final
    : public grpc::ServerBidiReactor<v1::OpenSessionRequest, v1::OpenSessionResponse>,
      public std::enable_shared_from_this<MemorySession> {
 public:
  struct Env {  // borrowed
    memory::MemoryRegistry* registry = nullptr;
    DecisionRecorder* recorder = nullptr;
    const base::Clock* clock = nullptr;
    // A session has begun; UNAVAILABLE when none may. And it has ended.
    std::function<absl::Status(const std::shared_ptr<MemorySession>&)> on_begin;
    std::function<void(const std::string& id)> on_end;
  };

  // The reactor of a new stream; it needs no owner.
  static MemorySession* Start(const Env& env, grpc::CallbackServerContext* context);

  // Set before on_begin, and constant from then on.
  const std::string& id() const { return id_; }
  const std::string& tenant() const { return tenant_; }

  // Releases what the session owns, then ends the stream. The first call counts. Any thread.
  void End(absl::Status status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  MemorySession(const Env& env, grpc::CallbackServerContext* context);

  absl::Status Begin();
  void Release();
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm();

  const Env env_;
  grpc::CallbackServerContext* const context_;
  const absl::Time started_;
  std::shared_ptr<MemorySession> self_;  // until OnDone
  std::string id_;
  std::string tenant_;

  // Touched between the end of one operation and the start of the next.
  v1::OpenSessionRequest request_;
  v1::OpenSessionResponse response_;

  base::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);  // as TransferSession's
};

}  // namespace kvbridge::server
