#include "server/address.h"

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace kvbridge::server {

absl::StatusOr<Address> Address::Parse(absl::string_view text) {
  const auto wrong = [text](absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: expected ", expected, ", got \"", text.substr(0, 120), "\""));
  };
  Address address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (rest.empty() || rest.size() >= sizeof(sockaddr_un::sun_path)) {
      return wrong("a socket path of 1 to 107 bytes");
    }
    address.path = std::string(rest);
    return address;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return wrong("host:port");
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return wrong("[v6 address]:port");
  } else if (absl::StrContains(host, ":")) {
    return wrong("[v6 address]:port");
  }
  if (host.empty() || !absl::SimpleAtoi(rest.substr(colon + 1), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return wrong("host:port with a port from 0 to 65535");
  }
  address.host = std::string(host);
  return address;
}

bool Address::is_local() const {
  if (is_unix() || host == "localhost" || host == "::1") return true;
  in_addr v4{};
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 && (ntohl(v4.s_addr) >> 24) == 127;
}

bool IsLocalPeer(absl::string_view peer) {
  for (absl::string_view local : {"unix:", "ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:"}) {
    if (absl::StartsWith(peer, local)) return true;
  }
  return false;
}

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError("listen.grpc: expected a socket or no file, got a file");
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  absl::Cleanup close_fd = [fd] { close(fd); };
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  const int rc = connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  if (rc == 0 || errno != ECONNREFUSED) {
    return absl::FailedPreconditionError("listen.grpc: another server listens on the socket");
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace kvbridge::server
