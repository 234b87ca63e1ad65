#include "client/cli/exit_code.h"

namespace kvbridge::cli {

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kOutOfRange:
      return ExitCode::kBadInput;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return ExitCode::kIncompatible;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kUnreachable;
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kResources;
    case absl::StatusCode::kCancelled:
      return ExitCode::kInterrupted;
    default:
      return ExitCode::kGateFailed;
  }
}

ExitCode ExitCodeForFallback(absl::string_view outcome, absl::string_view reason, bool refused,
                             bool fail_on_fallback) {
  if (refused || reason == "invalid_request" || reason == "artifact_integrity") {
    return ExitCode::kBadInput;
  }
  if (outcome == "unsupported" || reason == "incompatible_model" || reason == "shape_mismatch") {
    return ExitCode::kIncompatible;
  }
  if (reason == "unreachable" || reason == "circuit_open" || reason == "deadline_exceeded" ||
      reason == "transport") {
    return ExitCode::kUnreachable;
  }
  if (reason == "batch_limit" || reason == "token_limit" || reason == "device_oom") {
    return ExitCode::kResources;
  }
  return fail_on_fallback ? ExitCode::kGateFailed : ExitCode::kOk;
}

}  // namespace kvbridge::cli
