// Whose call it is: the one place that decides.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "grpcpp/server_context.h"
#include "server/decision_recorder.h"

namespace kvbridge::server {

// The tenant of a call: the one that its grant tells, and where none is required the one that its
// message states. Empty is a tenant of its own.
std::string TenantOf(const grpc::CallbackServerContext& context, absl::string_view stated);

// PERMISSION_DENIED, counted, when the caller has a grant, and `field` states another tenant than
// its own.
absl::Status CheckStated(const grpc::CallbackServerContext& context, absl::string_view field,
                         absl::string_view stated, DecisionRecorder* recorder);

}  // namespace kvbridge::server
