// The client's one place where gRPC's statuses become absl's: the codes are the same numbers.
#pragma once

#include "absl/status/status.h"

#include "grpcpp/support/status.h"

namespace kvbridge::client {

inline absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// The same of a plain call that this side did not cancel: a server that stops may cancel what it
// has, and is then away. One that has no such method says UNIMPLEMENTED, and not a word more.
inline absl::Status FromUncancelled(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::CANCELLED) {
    return absl::UnavailableError("the server cancelled the call: " + status.error_message());
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
    return absl::UnavailableError(
        "there is no such method: expected one of kvbridged's listen.grpc addresses, got another, "
        "such as its listen.health");
  }
  return FromGrpcStatus(status);
}

static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
              static_cast<int>(grpc::StatusCode::UNAUTHENTICATED));
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) ==
              static_cast<int>(grpc::StatusCode::UNAVAILABLE));

}  // namespace kvbridge::client
