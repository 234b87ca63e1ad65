// EXPECT_THAT(status, IsError(code, "part of the message")).
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <gmock/gmock.h>

namespace kvbridge::kv {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER_P2(IsError, code, text,
           absl::StatusCodeToString(code) + " with \"" + std::string(text) + "\"") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code && status.message().find(text) != absl::string_view::npos;
}

}  // namespace kvbridge::kv
