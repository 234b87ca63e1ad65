#include "client/cpp/side_socket.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace kvbridge::client {
namespace {

constexpr absl::string_view kMagic("KVBFD\0\0\1", 8);
constexpr char kDeposit = 'D';
constexpr size_t kMaxAnswer = 1 + 256;

struct Closer {
  int fd;
  ~Closer() { close(fd); }
};

absl::Status Failed(absl::string_view what, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("side socket: ", what, ": ", std::strerror(error)));
}

absl::Status Connect(int socket, const std::string& path, absl::Duration timeout) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("side socket: a path of ", path.size(), " characters is too long"));
  }
  path.copy(address.sun_path, path.size());
  const timeval limit = absl::ToTimeval(std::max(timeout, absl::Milliseconds(1)));
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    setsockopt(socket, SOL_SOCKET, option, &limit, sizeof(limit));
  }
  if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed("connect", errno);
  }
  return absl::OkStatus();
}

absl::Status SendWithFd(int socket, std::string packet, int fd) {
  iovec data = {packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) return Failed("send", errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> DepositFd(const std::string& path, absl::string_view session_id, int fd,
                                      absl::Duration timeout) {
  const Closer socket{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  if (socket.fd < 0) return Failed("socket", errno);
  if (absl::Status status = Connect(socket.fd, path, timeout); !status.ok()) return status;
  std::string packet = absl::StrCat(kMagic, std::string(1, kDeposit), session_id);
  if (absl::Status status = SendWithFd(socket.fd, std::move(packet), fd); !status.ok()) {
    return status;
  }
  std::array<char, kMaxAnswer> answer;
  const ssize_t received = recv(socket.fd, answer.data(), answer.size(), 0);
  if (received < 0) return Failed("receive", errno);
  if (received == 0) return Failed("receive", ECONNRESET);
  std::string text(answer.data() + 1, static_cast<size_t>(received - 1));
  if (answer[0] == 0) return text;
  return absl::Status(static_cast<absl::StatusCode>(answer[0]),
                      absl::StrCat("side socket: ", text));
}

}  // namespace kvbridge::client
