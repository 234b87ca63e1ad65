// Where a server listens: "host:port", "[v6]:port" or "unix:/path.sock".
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::server {

struct Address {
  std::string host;  // empty for a unix socket
  int port = 0;      // 0 = any
  std::string path;  // of a unix socket

  // INVALID_ARGUMENT says what was expected and what came.
  static absl::StatusOr<Address> Parse(absl::string_view text);

  bool is_unix() const { return !path.empty(); }
  // Whether nobody off this host can reach it.
  bool is_local() const;
};

// Whether gRPC's name of a peer ("unix:", "ipv4:127.0.0.1:5", "ipv6:%5B::1%5D:5") is on this host.
bool IsLocalPeer(absl::string_view peer);

// Removes a unix socket that a server left behind when it died: one that refuses connections.
// FAILED_PRECONDITION when somebody listens there, or when the file is no socket.
absl::Status RemoveStaleSocket(const std::string& path);

}  // namespace kvbridge::server
