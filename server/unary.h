// The one way that unary calls are answered: counted, converted, finished exactly once.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/decision_recorder.h"
#include "server/grpc_status.h"

namespace kvbridge::server {

// Counts one call from construction to Finish. A value; the last copy need not be finished.
class UnaryCall {
 public:
  UnaryCall(DecisionRecorder* recorder, const base::Clock* clock, metrics::RpcMethod method,
            grpc::CallbackServerContext* context)
      : recorder_(recorder),
        clock_(clock),
        method_(std::move(method)),
        reactor_(context->DefaultReactor()),
        started_(clock->Now()) {
    recorder_->RpcStarted(method_);
  }

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }

  // Call once, from any thread.
  grpc::ServerUnaryReactor* Finish(const absl::Status& status) const {
    const grpc::Status out = ToGrpc(status);
    recorder_->RpcEnded(method_, CodeName(out.error_code()), clock_->Now() - started_);
    reactor_->Finish(out);
    return reactor_;
  }

 private:
  DecisionRecorder* recorder_;
  const base::Clock* clock_;
  metrics::RpcMethod method_;
  grpc::ServerUnaryReactor* reactor_;
  absl::Time started_;
};

}  // namespace kvbridge::server
