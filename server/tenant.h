// Whose call it is: the one place that decides.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

#include "grpcpp/server_context.h"

namespace kvbridge::server {

// The tenant of a call, given the one that its message states. Empty is a tenant of its own.
std::string TenantOf(const grpc::CallbackServerContext& context, absl::string_view stated);

}  // namespace kvbridge::server
