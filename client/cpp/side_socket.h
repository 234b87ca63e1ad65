// The client's end of kvbridged's side socket, over which descriptors travel (docs/wire_format.md).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvbridge::client {

// Hands a copy of `fd` to the server and returns the ticket that RegisterRegion names it by.
// FAILED_PRECONDITION when nobody answers at `path` on this host, otherwise the server's own words.
// Blocks for at most `timeout` per packet.
absl::StatusOr<std::string> DepositFd(const std::string& path, absl::string_view session_id, int fd,
                                      absl::Duration timeout);

}  // namespace kvbridge::client
