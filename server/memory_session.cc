#include "server/memory_session.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "server/address.h"
#include "server/convert.h"
#include "server/grpc_status.h"
#include "server/grpc_time.h"
#include "server/tenant.h"

namespace kvbridge::server {
namespace {

const metrics::RpcMethod kMethod{"kvbridge.v1.Memory", "OpenSession", "bidi_stream"};

}  // namespace

MemorySession* MemorySession::Start(const Env& env, grpc::CallbackServerContext* context) {
  std::shared_ptr<MemorySession> session(new MemorySession(env, context));
  session->self_ = session;
  env.recorder->RpcStarted(kMethod);
  base::MutexLock lock(&session->mutex_);
  session->heard_ = session->started_;
  session->SetAlarm();
  session->StartRead(&session->request_);
  return session.get();
}

MemorySession::MemorySession(const Env& env, grpc::CallbackServerContext* context)
    : env_(env), context_(context), started_(env.clock->Now()) {}

absl::Status MemorySession::Begin() {
  if (!IsLocalPeer(context_->peer())) {
    return absl::PermissionDeniedError("shared memory is for callers on this host");
  }
  if (absl::Status own = CheckStated(*context_, "tenant", request_.tenant(), env_.recorder);
      !own.ok()) {
    return own;
  }
  tenant_ = TenantOf(*context_, request_.tenant());
  auto id = env_.registry->OpenSession(tenant_);
  if (!id.ok()) return id.status();
  id_ = *std::move(id);
  const absl::Status begun = env_.on_begin(shared_from_this());
  if (!begun.ok()) env_.registry->CloseSession(id_);
  return begun;
}

void MemorySession::OnReadDone(bool ok) {
  if (!ok) return End(absl::OkStatus());
  const bool first = id_.empty();
  const absl::Status alive = first ? Begin() : env_.registry->Heartbeat(id_);
  if (!alive.ok()) return End(alive);
  env_.registry->Expire();
  {
    base::MutexLock lock(&mutex_);
    heard_ = env_.clock->Now();
    begun_ = true;
    if (!ended_) {
      response_.set_session_id(id_);
      *response_.mutable_lease() = ToProto(env_.registry->lease());
      writing_ = true;
      StartWrite(&response_);
      return;
    }
  }
  if (first) Release();  // it ended while it began
}

void MemorySession::OnWriteDone(bool ok) {
  {
    base::MutexLock lock(&mutex_);
    writing_ = false;
    if (ended_) return Finish(ToGrpc(status_));
  }
  if (!ok) return End(absl::CancelledError("the caller went away"));
  StartRead(&request_);
}

void MemorySession::SetAlarm() {
  alarm_ = std::make_unique<grpc::Alarm>();
  alarm_->Set(ToGrpcTime(*env_.clock, heard_ + env_.registry->lease()),
              [weak = weak_from_this()](bool fired) {
                const auto self = weak.lock();
                if (self != nullptr && fired) self->OnAlarm();
              });
}

void MemorySession::OnAlarm() {
  {
    base::MutexLock lock(&mutex_);
    if (ended_) return;
    if (env_.clock->Now() < heard_ + env_.registry->lease()) return SetAlarm();
    if (writing_) context_->TryCancel();  // it does not read what it is told
  }
  End(absl::DeadlineExceededError(absl::StrCat("session: expected a heartbeat at least every ",
                                               absl::FormatDuration(env_.registry->lease()))));
}

void MemorySession::End(absl::Status status) {
  bool begun = false;
  {
    base::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    begun = begun_;
    status_ = std::move(status);
  }
  if (begun) Release();
  base::MutexLock lock(&mutex_);
  if (!writing_) Finish(ToGrpc(status_));
}

void MemorySession::Release() {
  env_.registry->CloseSession(id_);
  env_.on_end(id_);
}

void MemorySession::OnCancel() { End(absl::CancelledError("the caller went away")); }

void MemorySession::OnDone() {
  std::string code;
  {
    base::MutexLock lock(&mutex_);
    code = std::string(CodeName(ToGrpc(status_).error_code()));
  }
  env_.recorder->RpcEnded(kMethod, code, env_.clock->Now() - started_);
  const std::shared_ptr<MemorySession> last = std::move(self_);
}

}  // namespace kvbridge::server
