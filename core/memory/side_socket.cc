#include "core/memory/side_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/status_macros.h"
#include "core/memory/fd_packet.h"

namespace kvbridge::memory {
namespace {

using namespace std::string_view_literals;

constexpr auto kMagicBytes = "KVBFD\0\0\1"sv;
const absl::string_view kMagic(kMagicBytes.data(), kMagicBytes.size());
constexpr size_t kIdLength = 32;
constexpr size_t kLongestText = 256;
constexpr int kPauseMilliseconds = 100;

absl::Status Unavailable(absl::string_view call) {
  return absl::UnavailableError(absl::StrCat("memory.socket: ", call, ": ", std::strerror(errno)));
}

absl::Status Taken(absl::string_view by) {
  return absl::FailedPreconditionError(
      absl::StrCat("memory.socket: expected a free path, got ", by));
}

absl::StatusOr<sockaddr_un> NameOf(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("memory.socket: expected a path of 1 to ",
                                                   sizeof(name.sun_path) - 1, " bytes, got ",
                                                   path.size()));
  }
  path.copy(name.sun_path, path.size());
  return name;
}

// A socket that refuses connections was left behind by a server that died.
absl::Status RemoveStale(const std::string& path, const sockaddr_un& name) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) return Taken("something that is no socket");
  const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return Unavailable("socket");
  const int rc = connect(probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  if (rc == 0 || errno != ECONNREFUSED) return Taken("one where another server listens");
  unlink(path.c_str());
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Listen(const SideSocketOptions& options) {
  KVB_ASSIGN_OR_RETURN(const sockaddr_un name, NameOf(options.path));
  KVB_RETURN_IF_ERROR(RemoveStale(options.path, name));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Unavailable("socket");
  // Before bind() this is the file's mode, so that nobody slips in between. Peers are asked for
  // their uid anyway.
  fchmod(fd.get(), 0600);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return Unavailable("bind");
  }
  if (!options.allowed_uids.empty()) chmod(options.path.c_str(), 0666);
  if (listen(fd.get(), 64) != 0) return Unavailable("listen");
  return fd;
}

struct Request {
  char verb = 0;
  absl::string_view session_id;
  absl::string_view ticket;  // of a claim
};

absl::StatusOr<Request> Parse(const FdPacket& packet) {
  absl::string_view rest = packet.data;
  Request request;
  if (!absl::ConsumePrefix(&rest, kMagic) || rest.empty()) {
    return absl::InvalidArgumentError("request: expected KVBFD version 1");
  }
  request.verb = rest.front();
  rest.remove_prefix(1);
  const bool deposit = request.verb == 'D';
  if (!deposit && request.verb != 'C') {
    return absl::InvalidArgumentError("request: expected the verb D or C");
  }
  if (!packet.whole || rest.size() != (deposit ? kIdLength : 2 * kIdLength)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: expected ", deposit ? 41 : 73, " bytes"));
  }
  const size_t wanted = deposit ? 1 : 0;
  if (packet.fds.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: expected descriptors: ", wanted, ", got ", packet.fds.size()));
  }
  request.session_id = rest.substr(0, kIdLength);
  request.ticket = rest.substr(kIdLength);
  return request;
}

std::string Answer(absl::StatusCode code, absl::string_view text) {
  return absl::StrCat(std::string(1, static_cast<char>(code)), text.substr(0, kLongestText));
}

bool SendStatus(const UniqueFd& peer, const absl::Status& status) {
  return SendPacket(peer, Answer(status.code(), status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SideSocket>> SideSocket::Start(const SideSocketOptions& options,
                                                              MemoryRegistry* registry) {
  if (options.max_connections < 1) {
    return absl::InvalidArgumentError("max_connections: expected at least 1");
  }
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return Unavailable("eventfd");
  KVB_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options));
  std::unique_ptr<SideSocket> side(
      new SideSocket(options, registry, std::move(listener), std::move(wake)));
  side->thread_ = std::thread([raw = side.get()] { raw->Run(); });
  return side;
}

SideSocket::SideSocket(SideSocketOptions options, MemoryRegistry* registry, UniqueFd listener,
                       UniqueFd wake)
    : options_(std::move(options)),
      registry_(registry),
      listener_(std::move(listener)),
      wake_(std::move(wake)) {}

void SideSocket::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
  connections_.clear();
  // First the name, while nobody else can have it: a successor takes it as soon as we refuse.
  unlink(options_.path.c_str());
  shutdown(listener_.get(), SHUT_RDWR);
}

void SideSocket::Run() {
  std::vector<pollfd> polled;
  while (true) {
    ++turn_;
    polled.clear();
    polled.push_back({wake_.get(), POLLIN, 0});
    polled.push_back({pause_ ? -1 : listener_.get(), POLLIN, 0});
    for (const Connection& connection : connections_) {
      polled.push_back({connection.fd.get(), POLLIN, 0});
    }
    const int ready = poll(polled.data(), polled.size(), pause_ ? kPauseMilliseconds : -1);
    pause_ = false;
    if (ready < 0) continue;  // a signal
    if (polled[0].revents != 0) return;
    // One request of each per turn, so that nobody's many delay another's one.
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (polled[i + 2].revents != 0 && !Serve(connections_[i])) connections_[i].fd = UniqueFd();
    }
    std::erase_if(connections_, [](const Connection& c) { return !c.fd.valid(); });
    if (polled[1].revents != 0) Accept();
  }
}

void SideSocket::Accept() {
  UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer.valid()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      DropOldest();
      pause_ = true;
    }
    return;
  }
  // One who is not allowed is told so when it asks: closed before, it might not see the answer. At
  // most one such waits, so that they can't crowd out the others.
  const bool admitted = Admit(peer);
  if (!admitted) std::erase_if(connections_, [](const Connection& c) { return !c.admitted; });
  if (std::cmp_greater_equal(connections_.size(), options_.max_connections)) DropOldest();
  connections_.push_back({std::move(peer), turn_, admitted});
}

bool SideSocket::Admit(const UniqueFd& peer) const {
  ucred who{};
  socklen_t size = sizeof(who);
  if (getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return false;
  const auto& allowed = options_.allowed_uids;
  return who.uid == geteuid() ||
         std::find(allowed.begin(), allowed.end(), who.uid) != allowed.end();
}

void SideSocket::DropOldest() {
  const auto oldest = std::min_element(
      connections_.begin(), connections_.end(),
      [](const Connection& a, const Connection& b) { return a.last_turn < b.last_turn; });
  if (oldest != connections_.end()) connections_.erase(oldest);
}

bool SideSocket::Serve(Connection& connection) {
  FdPacket packet;
  switch (ReceivePacket(connection.fd, packet)) {
    case Received::kNothingYet:
      return true;
    case Received::kClosed:
      return false;
    case Received::kPacket:
      break;
  }
  connection.last_turn = turn_;
  const absl::StatusOr<Request> request =
      connection.admitted ? Parse(packet) : absl::PermissionDeniedError("uid: not allowed");
  if (!request.ok()) {
    packet.fds.clear();
    SendStatus(connection.fd, request.status());
    return false;
  }
  if (request->verb == 'D') {
    const auto ticket = registry_->DepositFd(request->session_id, std::move(packet.fds.front()));
    packet.fds.clear();
    return ticket.ok() ? SendPacket(connection.fd, Answer(absl::StatusCode::kOk, *ticket))
                       : SendStatus(connection.fd, ticket.status());
  }
  const auto claimed = registry_->ClaimFd(request->session_id, request->ticket);
  if (!claimed.ok()) return SendStatus(connection.fd, claimed.status());
  return SendPacket(connection.fd, Answer(absl::StatusCode::kOk, ""), *claimed);
}

}  // namespace kvbridge::memory
