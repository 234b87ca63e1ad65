#include "core/memory/side_socket.h"

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/memory/fd_packet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/memory/client_memfd.h"
#include "tests/core/memory/host_state.h"
#include "tests/core/memory/registry_fixture.h"

namespace kvbridge::memory {
namespace {

using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using ::testing::HasSubstr;
using ::testing::SizeIs;

namespace fs = std::filesystem;

const std::string kMagic("KVBFD\0\0\1", 8);

UniqueFd Connect(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) return {};
  // A test that waits for an answer that never comes fails instead of hanging.
  const timeval limit{20, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  return fd;
}

struct Reply {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string text;
  UniqueFd fd;
};

// Nothing: the server closed the connection.
std::optional<Reply> Receive(const UniqueFd& socket) {
  FdPacket packet;
  if (ReceivePacket(socket, packet) != Received::kPacket) return std::nullopt;
  Reply reply{static_cast<absl::StatusCode>(packet.data[0]), packet.data.substr(1), UniqueFd()};
  if (!packet.fds.empty()) reply.fd = std::move(packet.fds.front());
  return reply;
}

std::optional<Reply> Ask(const UniqueFd& socket, const std::string& packet,
                         const UniqueFd& attached = {}) {
  if (!SendPacket(socket, packet, attached)) return std::nullopt;
  return Receive(socket);
}

// More descriptors in one packet than the client protocol has.
void SendMany(const UniqueFd& socket, const std::string& data, const std::vector<UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  std::vector<cmsghdr> control(CMSG_SPACE(numbers.size() * sizeof(int)) / sizeof(cmsghdr) + 1);
  iovec bytes{const_cast<char*>(data.data()), data.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(numbers.size() * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(numbers.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), numbers.data(), numbers.size() * sizeof(int));
  ASSERT_EQ(sendmsg(socket.get(), &message, 0), static_cast<ssize_t>(data.size()));
}

class SideSocketTest : public RegistryTest {
 protected:
  SideSocketTest() {
    std::string pattern = (fs::temp_directory_path() / "kvbridge-side-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "fd.sock";
    Listen({.path = path_});
  }
  ~SideSocketTest() override {
    side_.reset();
    fs::remove_all(folder_);
  }

  void Listen(const SideSocketOptions& options) {
    side_.reset();
    auto side = SideSocket::Start(options, registry_.get());
    ASSERT_TRUE(side.ok()) << side.status();
    side_ = *std::move(side);
  }

  std::string Deposit() const { return kMagic + "D" + session_; }
  std::string Claim(const std::string& ticket) const { return kMagic + "C" + session_ + ticket; }

  // The server's thread has seen all that was sent or closed before.
  void Settle() {
    const UniqueFd peer = Connect(path_);
    ASSERT_TRUE(Ask(peer, Claim(std::string(32, '0'))).has_value());
    ASSERT_TRUE(Ask(peer, Claim(std::string(32, '0'))).has_value());
  }

  fs::path folder_;
  std::string path_;
  std::unique_ptr<SideSocket> side_;
};

TEST_F(SideSocketTest, ADescriptorGoesInAndOutByTickets) {
  const UniqueFd peer = Connect(path_);
  const auto deposited = Ask(peer, Deposit(), ClientMemfd(kRegionBytes));
  ASSERT_TRUE(deposited.has_value());
  EXPECT_EQ(deposited->code, absl::StatusCode::kOk);
  ASSERT_THAT(deposited->text, SizeIs(32));
  EXPECT_TRUE(
      registry_->RegisterRegion("ana", session_, {.bytes = kRegionBytes, .ticket = deposited->text})
          .ok());

  const RegionGrant region = NewRegion();
  const auto claimed = Ask(peer, Claim(region.ticket));
  ASSERT_TRUE(claimed.has_value());
  EXPECT_EQ(claimed->code, absl::StatusCode::kOk);
  EXPECT_EQ(claimed->text, "");
  EXPECT_TRUE(ClientMap(claimed->fd, kRegionBytes).ok());
  EXPECT_NE(fcntl(claimed->fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(SideSocketTest, ARefusalNamesItsReasonAndTheConnectionGoesOn) {
  const UniqueFd peer = Connect(path_);
  const auto refused = Ask(peer, Claim(std::string(32, 'f')));
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, absl::StatusCode::kNotFound);
  EXPECT_EQ(refused->text, "ticket: not found");
  const auto unknown = Ask(peer, kMagic + "D" + std::string(32, '0'), ClientMemfd(4096));
  ASSERT_TRUE(unknown.has_value());
  EXPECT_EQ(unknown->text, "session_id: not found");
  EXPECT_EQ(Ask(peer, Deposit(), ClientMemfd(4096))->code, absl::StatusCode::kOk);
}

TEST_F(SideSocketTest, WhatIsNoRequestIsAnsweredAndClosedAndItsDescriptorsToo) {
  struct Case {
    const char* what;
    std::string data;
    size_t fds;
  };
  const std::vector<Case> cases = {
      {"one byte", "K", 0},
      {"another protocol", "GET / HTTP/1.1", 1},
      {"another version", std::string("KVBFD\0\0\2", 8) + "D" + session_, 1},
      {"magic alone", kMagic, 1},
      {"another verb", kMagic + "X" + session_, 1},
      {"short", kMagic + "D" + session_.substr(1), 1},
      {"long", kMagic + "D" + session_ + "0", 1},
      {"longer than any packet", kMagic + "D" + session_ + std::string(4000, '0'), 1},
      {"a claim without its ticket", kMagic + "C" + session_, 0},
      {"a claim that brings a descriptor", Claim(std::string(32, '0')), 1},
      {"a deposit without a descriptor", Deposit(), 0},
      {"two descriptors", Deposit(), 2},
      {"more than the control data holds", Deposit(), 7},
      {"as many as one packet can bring", Deposit(), 253},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    std::vector<UniqueFd> fds;
    for (size_t i = 0; i < c.fds; ++i) fds.push_back(ClientMemfd(4096));
    const HostState before = HostState::Now();
    {
      const UniqueFd peer = Connect(path_);
      if (fds.empty()) {
        ASSERT_TRUE(SendPacket(peer, c.data));
      } else {
        SendMany(peer, c.data, fds);
      }
      const auto reply = Receive(peer);
      ASSERT_TRUE(reply.has_value());
      EXPECT_EQ(reply->code, kInvalidArgument) << reply->text;
      EXPECT_THAT(reply->text, HasSubstr("request: expected"));
      EXPECT_FALSE(Receive(peer).has_value()) << "closed";
    }
    Settle();
    Settle();
    EXPECT_LE(HostState::Now().fds, before.fds + 1) << "the settling peer's end may linger";
    EXPECT_EQ(registry_->use().waiting_fds, 0);
  }
}

TEST_F(SideSocketTest, AnEmptyPacketThatBringsADescriptorLeavesNone) {
  std::vector<UniqueFd> fds;
  fds.push_back(ClientMemfd(4096));
  const HostState before = HostState::Now();
  {
    const UniqueFd peer = Connect(path_);
    SendMany(peer, "", fds);
    EXPECT_FALSE(Receive(peer).has_value());
  }
  Settle();
  EXPECT_LE(HostState::Now().fds, before.fds + 1);
}

TEST_F(SideSocketTest, AThousandBadPeersLeaveNoDescriptor) {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < 5; ++i) fds.push_back(ClientMemfd(4096));
  const HostState before = HostState::Now();
  for (int i = 0; i < 1000; ++i) SendMany(Connect(path_), Deposit(), fds);
  Settle();
  EXPECT_LE(HostState::Now().fds, before.fds + 1);
}

TEST_F(SideSocketTest, APeerThatSaysNothingDelaysNobody) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Connect(path_));
  const UniqueFd peer = Connect(path_);
  EXPECT_EQ(Ask(peer, Deposit(), ClientMemfd(4096))->code, absl::StatusCode::kOk);
}

TEST_F(SideSocketTest, APeerThatNeverReadsItsAnswersIsClosedAndDelaysNobody) {
  const UniqueFd deaf = Connect(path_);
  const std::string question = Claim(std::string(32, '0'));
  // Until the server has closed it.
  while (send(deaf.get(), question.data(), question.size(), MSG_NOSIGNAL) > 0) {
  }
  EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET) << std::strerror(errno);
  const UniqueFd peer = Connect(path_);
  EXPECT_EQ(Ask(peer, Deposit(), ClientMemfd(4096))->code, absl::StatusCode::kOk);
}

TEST_F(SideSocketTest, WithTooManyConnectionsTheOneIdleLongestMakesRoom) {
  Listen({.path = path_, .allowed_uids = {}, .max_connections = 2});
  const std::string question = Claim(std::string(32, '0'));
  const UniqueFd first = Connect(path_);
  ASSERT_TRUE(Ask(first, question).has_value());
  const UniqueFd second = Connect(path_);
  ASSERT_TRUE(Ask(second, question).has_value());
  ASSERT_TRUE(Ask(first, question).has_value());
  const UniqueFd third = Connect(path_);
  ASSERT_TRUE(Ask(third, question).has_value());
  EXPECT_FALSE(Receive(second).has_value()) << "it asked longest ago";
  EXPECT_TRUE(Ask(first, question).has_value());
}

TEST_F(SideSocketTest, WithoutADescriptorLeftItServesAgainWhenThereIsOne) {
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const UniqueFd peer = Connect(path_);
  ASSERT_TRUE(Ask(peer, Claim(std::string(32, '0'))).has_value());
  const UniqueFd waiting(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path_.copy(name.sun_path, sizeof(name.sun_path) - 1);
  const rlimit none{3, usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const int connected =
      connect(waiting.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name));
  // The server drops the idle connection to make room, which is not enough here.
  const bool dropped = !Receive(peer).has_value();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_EQ(connected, 0);
  EXPECT_TRUE(dropped);
  EXPECT_TRUE(Ask(waiting, Claim(std::string(32, '0'))).has_value());
}

// Asks as another user, in a child of its own. The code of the answer; 99 if it could not.
int AskAs(uid_t uid, const std::string& path, const std::string& question) {
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(uid, uid, uid) != 0) _exit(99);
    const UniqueFd peer = Connect(path);
    if (!peer.valid()) _exit(98);
    const auto reply = Ask(peer, question);
    _exit(reply.has_value() ? static_cast<int>(reply->code) : 97);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST_F(SideSocketTest, OnlyAllowedUsersAreAnswered) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  const std::string question = Claim(std::string(32, '0'));
  fs::permissions(folder_, fs::perms::all);
  EXPECT_EQ(AskAs(4242, path_, question), 98) << "the socket's mode keeps everyone else out";
  fs::permissions(path_, fs::perms::all);
  EXPECT_EQ(AskAs(4242, path_, question), static_cast<int>(absl::StatusCode::kPermissionDenied));
  Listen({.path = path_, .allowed_uids = {4242}});
  EXPECT_EQ(AskAs(4242, path_, question), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(AskAs(4243, path_, question), static_cast<int>(absl::StatusCode::kPermissionDenied));
}

TEST_F(SideSocketTest, TheSocketIsPrivateUnlessOthersAreAllowed) {
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(SideSocketTest, StopTakesTheSocketAwayAndCanBeRepeated) {
  const UniqueFd peer = Connect(path_);
  ASSERT_TRUE(Ask(peer, Claim(std::string(32, '0'))).has_value());
  side_->Stop();
  side_->Stop();
  EXPECT_FALSE(Receive(peer).has_value());
  EXPECT_FALSE(fs::exists(path_));
  Listen({.path = path_});
  EXPECT_TRUE(Ask(Connect(path_), Claim(std::string(32, '0'))).has_value());
}

TEST_F(SideSocketTest, ASocketThatADeadServerLeftIsReplaced) {
  const std::string stale = folder_ / "stale.sock";
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    stale.copy(name.sun_path, sizeof(name.sun_path) - 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  }
  ASSERT_TRUE(fs::exists(stale));
  Listen({.path = stale});
  EXPECT_TRUE(Ask(Connect(stale), Claim(std::string(32, '0'))).has_value());
}

TEST_F(SideSocketTest, APathThatIsTakenOrImpossibleIsRefused) {
  const auto start = [this](const std::string& path) {
    return SideSocket::Start({.path = path}, registry_.get()).status();
  };
  EXPECT_EQ(start(path_).code(), kFailedPrecondition);
  EXPECT_TRUE(fs::exists(path_)) << "the listener's socket stays";
  EXPECT_EQ(start(folder_).code(), kFailedPrecondition);
  EXPECT_EQ(start("").code(), kInvalidArgument);
  EXPECT_EQ(start(std::string(108, 'a')).code(), kInvalidArgument);
  EXPECT_EQ(start(folder_ / "none" / "fd.sock").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvbridge::memory
