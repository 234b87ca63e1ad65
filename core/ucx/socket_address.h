// "host:port" or "[v6]:port", numeric, as the kernel has it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <sys/socket.h>

namespace kvbridge::ucx {

class SocketAddress {
 public:
  // INVALID_ARGUMENT says what was expected and what came.
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);
  explicit SocketAddress(const sockaddr_storage& storage) : storage_(storage) {}

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const;
  std::string ToString() const;

 private:
  sockaddr_storage storage_;
};

}  // namespace kvbridge::ucx
