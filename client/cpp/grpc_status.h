// The client's one place where gRPC's statuses become absl's: the codes are the same numbers.
#pragma once

#include "absl/status/status.h"

#include "grpcpp/support/status.h"

namespace kvbridge::client {

inline absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// The same of a call that this side did not cancel: a server that stops may cancel what it has, and
// is then away.
inline absl::Status FromUncancelled(const grpc::Status& status) {
  if (status.error_code() != grpc::StatusCode::CANCELLED) return FromGrpcStatus(status);
  return absl::UnavailableError("the server cancelled the call: " + status.error_message());
}

static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
              static_cast<int>(grpc::StatusCode::UNAUTHENTICATED));
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) ==
              static_cast<int>(grpc::StatusCode::UNAVAILABLE));

}  // namespace kvbridge::client
