#include "server/grpc_status.h"

#include <string>

namespace kvbridge::server {
namespace {

constexpr size_t kMaxMessage = 1024;

constexpr bool Same(absl::StatusCode ours, grpc::StatusCode theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(Same(absl::StatusCode::kOk, grpc::OK));
static_assert(Same(absl::StatusCode::kCancelled, grpc::CANCELLED));
static_assert(Same(absl::StatusCode::kUnknown, grpc::UNKNOWN));
static_assert(Same(absl::StatusCode::kInvalidArgument, grpc::INVALID_ARGUMENT));
static_assert(Same(absl::StatusCode::kDeadlineExceeded, grpc::DEADLINE_EXCEEDED));
static_assert(Same(absl::StatusCode::kNotFound, grpc::NOT_FOUND));
static_assert(Same(absl::StatusCode::kAlreadyExists, grpc::ALREADY_EXISTS));
static_assert(Same(absl::StatusCode::kPermissionDenied, grpc::PERMISSION_DENIED));
static_assert(Same(absl::StatusCode::kResourceExhausted, grpc::RESOURCE_EXHAUSTED));
static_assert(Same(absl::StatusCode::kFailedPrecondition, grpc::FAILED_PRECONDITION));
static_assert(Same(absl::StatusCode::kAborted, grpc::ABORTED));
static_assert(Same(absl::StatusCode::kOutOfRange, grpc::OUT_OF_RANGE));
static_assert(Same(absl::StatusCode::kUnimplemented, grpc::UNIMPLEMENTED));
static_assert(Same(absl::StatusCode::kInternal, grpc::INTERNAL));
static_assert(Same(absl::StatusCode::kUnavailable, grpc::UNAVAILABLE));
static_assert(Same(absl::StatusCode::kDataLoss, grpc::DATA_LOSS));
static_assert(Same(absl::StatusCode::kUnauthenticated, grpc::UNAUTHENTICATED));

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::string_view message = status.message();
  if (message.size() > kMaxMessage) {
    size_t end = kMaxMessage;
    while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
    message = message.substr(0, end);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(message));
}

absl::string_view CodeName(grpc::StatusCode code) {
  constexpr absl::string_view kNames[] = {"OK",
                                          "CANCELLED",
                                          "UNKNOWN",
                                          "INVALID_ARGUMENT",
                                          "DEADLINE_EXCEEDED",
                                          "NOT_FOUND",
                                          "ALREADY_EXISTS",
                                          "PERMISSION_DENIED",
                                          "RESOURCE_EXHAUSTED",
                                          "FAILED_PRECONDITION",
                                          "ABORTED",
                                          "OUT_OF_RANGE",
                                          "UNIMPLEMENTED",
                                          "INTERNAL",
                                          "UNAVAILABLE",
                                          "DATA_LOSS",
                                          "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

}  // namespace kvbridge::server
