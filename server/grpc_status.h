// The one place where absl::Status becomes grpc::Status.
#pragma once

#include "absl/status/status.h"

#include "grpcpp/support/status.h"

namespace kvbridge::server {

// Same code; the message is cut at 1 KiB, on a character's edge: metadata that is too large loses
// the whole status.
grpc::Status ToGrpc(const absl::Status& status);

// "OK", "INVALID_ARGUMENT": gRPC's own metric labels.
absl::string_view CodeName(grpc::StatusCode code);

}  // namespace kvbridge::server
