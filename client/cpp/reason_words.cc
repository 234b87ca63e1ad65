#include "client/cpp/reason_words.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvbridge::client {
namespace {

std::string Word(absl::string_view name, absl::string_view prefix, int number) {
  if (number == 0) return "";
  if (!absl::ConsumePrefix(&name, prefix)) return "internal";
  return absl::AsciiStrToLower(name);
}

struct Cause {
  absl::string_view reason;
  absl::string_view reason_class;
};

Cause CauseOf(absl::StatusCode code, bool accepted) {
  switch (code) {
    case absl::StatusCode::kDeadlineExceeded:
      return {"deadline_exceeded", "capacity"};
    case absl::StatusCode::kResourceExhausted:
      return {"overload", "capacity"};
    case absl::StatusCode::kInvalidArgument:
      return {"invalid_request", "client"};
    case absl::StatusCode::kDataLoss:
      return {"transport", "infra"};
    case absl::StatusCode::kUnavailable:
      return {accepted ? absl::string_view("transport") : kUnreachable, "infra"};
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return {kUnreachable, "infra"};
    default:
      return {"internal", "internal"};
  }
}

}  // namespace

std::string ReasonWord(v1::Reason reason) {
  return Word(v1::Reason_Name(reason), "REASON_", reason);
}

std::string ReasonClassWord(v1::ReasonClass reason_class) {
  return Word(v1::ReasonClass_Name(reason_class), "REASON_CLASS_", reason_class);
}

void SetFallback(const absl::Status& error, bool accepted, TransferResult* result) {
  const Cause cause = CauseOf(error.code(), accepted);
  result->outcome = v1::OUTCOME_FALLBACK_REPREFILL;
  result->reason = std::string(cause.reason);
  result->reason_class = std::string(cause.reason_class);
  result->detail = std::string(error.message());
  result->call_status = error.code();
  result->covered_tokens = 0;
}

bool IsInfraFailure(const TransferResult& result) {
  return result.reason == kUnreachable || result.reason == "transport" ||
         result.reason == "device_error";
}

absl::Status ToStatus(const TransferResult& result) {
  const std::string message = absl::StrCat(result.reason, ": ", result.detail);
  if (result.refused()) return absl::Status(result.call_status, message);
  if (result.reason == kUnreachable || result.reason == kCircuitOpen) {
    return absl::UnavailableError(message);
  }
  if (result.reason == "deadline_exceeded") return absl::DeadlineExceededError(message);
  if (result.reason == "invalid_request") return absl::InvalidArgumentError(message);
  if (result.reason == "transport") return absl::DataLossError(message);
  if (result.reason == "internal") return absl::InternalError(message);
  if (result.reason_class == "capacity") return absl::ResourceExhaustedError(message);
  return absl::FailedPreconditionError(message);
}

}  // namespace kvbridge::client
