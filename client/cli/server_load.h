// What of a server's load its admin HTTP alone tells.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::cli {

struct ServerLoad {
  int64_t inflight_transfers = 0;
  int64_t queue_depth = 0;  // tiles
  int64_t queue_limit = 0;
};

// Of what /metrics says. INVALID_ARGUMENT names a metric that is missing.
absl::StatusOr<ServerLoad> ParseLoad(absl::string_view metrics);

// `admin`: "host:port". UNAVAILABLE names it.
absl::StatusOr<ServerLoad> FetchLoad(const std::string& admin);

}  // namespace kvbridge::cli
