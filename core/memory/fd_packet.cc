#include "core/memory/fd_packet.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/uio.h>

namespace kvbridge::memory {
namespace {

constexpr size_t kMostBytes = 128;
// Room for more than the one that a request may bring, so that too many are seen as such. The
// kernel closes those that don't fit.
constexpr size_t kMostFds = 4;

// Control data has to be aligned like its header.
template <size_t kFds>
struct alignas(cmsghdr) Control {
  std::array<char, CMSG_SPACE(kFds * sizeof(int))> bytes{};
};

void CollectFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

Received ReceivePacket(const UniqueFd& socket, FdPacket& packet) {
  packet.data.resize(kMostBytes);
  Control<kMostFds> control;
  iovec data{packet.data.data(), packet.data.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  ssize_t size = 0;
  do {
    size = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Received::kNothingYet : Received::kClosed;
  }
  CollectFds(message, packet.fds);
  packet.data.resize(static_cast<size_t>(size));
  packet.whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  return size == 0 ? Received::kClosed : Received::kPacket;
}

bool SendPacket(const UniqueFd& socket, absl::string_view data, const UniqueFd& attached) {
  Control<1> control;
  iovec bytes{const_cast<char*>(data.data()), data.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (attached.valid()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = control.bytes.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = attached.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(data.size());
}

}  // namespace kvbridge::memory
