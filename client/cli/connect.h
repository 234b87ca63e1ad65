// The one way in which commands reach a server: no retries beyond the client's, plain errors.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "client/cpp/client.h"

namespace kvbridge::cli {

inline absl::StatusOr<std::unique_ptr<client::Client>> Connect(const std::string& server) {
  return client::Client::Create({.target = server});
}

}  // namespace kvbridge::cli
