// Ports of the gRPC server that let no call through before an Authorizer has seen it: handlers,
// reflection, and methods that do not exist alike. The one place that knows gRPC's C interface to
// that.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <grpc/grpc_security.h>

#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_context.h"
#include "server/auth.h"

namespace kvbridge::server {

// Takes ownership of `credentials`. The authorizer is borrowed until the server is gone.
std::shared_ptr<grpc::ServerCredentials> GuardedPort(grpc_server_credentials* credentials,
                                                     const Authorizer* authorizer);

// The tenant that the authorizer told for a call that it let through; nullopt where none is
// required.
std::optional<std::string> GrantedTenant(const grpc::ServerContextBase& context);

}  // namespace kvbridge::server
