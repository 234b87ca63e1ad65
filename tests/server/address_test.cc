#include "server/address.h"

#include <filesystem>
#include <fstream>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

// A unix socket bound to `path`, listening or not.
int BoundSocket(const std::string& path, bool listening) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof(name.sun_path) - 1);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  if (listening) {
    EXPECT_EQ(listen(fd, 1), 0);
  }
  return fd;
}

class StaleSocketTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ =
      std::filesystem::temp_directory_path() / ("kvb-addr-" + std::to_string(getpid()));
};

TEST(AddressTest, ReadsEveryForm) {
  EXPECT_EQ(Address::Parse("unix:/run/k.sock")->path, "/run/k.sock");
  EXPECT_EQ(Address::Parse("127.0.0.1:50061")->port, 50061);
  EXPECT_EQ(Address::Parse("[::1]:1")->host, "::1");
}

TEST(AddressTest, RefusesWhatIsNone) {
  for (const char* text :
       {"", "unix:", ":1", "host", "host:", "host:x", "host:-1", "host:65536", "::1:5", "[::1:5"}) {
    EXPECT_EQ(Address::Parse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(Address::Parse("unix:/" + std::string(200, 'a')).ok());
}

TEST(AddressTest, KnowsWhatStaysOnThisHost) {
  for (const char* text : {"unix:/x", "127.0.0.1:1", "127.8.0.1:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(Address::Parse(text)->is_local()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "example.org:1", "128.0.0.1:1"}) {
    EXPECT_FALSE(Address::Parse(text)->is_local()) << text;
  }
}

TEST(AddressTest, OnlyThisHostIsLocal) {
  for (const char* peer :
       {"unix:", "unix:/run/x", "ipv4:127.0.0.1:5", "ipv6:[::1]:5", "ipv6:%5B::1%5D:5"}) {
    EXPECT_TRUE(IsLocalPeer(peer)) << peer;
  }
  for (const char* peer :
       {"", "ipv4:10.0.0.1:5", "ipv4:128.0.0.1:5", "ipv6:[fe80::1]:5", "ipv6:%5B::11%5D:5"}) {
    EXPECT_FALSE(IsLocalPeer(peer)) << peer;
  }
}

TEST_F(StaleSocketTest, OneThatNobodyListensOnIsRemoved) {
  close(BoundSocket(path_, true));
  EXPECT_TRUE(RemoveStaleSocket(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(StaleSocketTest, OneInUseIsKept) {
  const int fd = BoundSocket(path_, true);
  EXPECT_EQ(RemoveStaleSocket(path_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(path_));
  close(fd);
}

TEST_F(StaleSocketTest, AFileIsKept) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(RemoveStaleSocket(path_).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(StaleSocketTest, NothingThereIsFine) { EXPECT_TRUE(RemoveStaleSocket(path_).ok()); }

}  // namespace
}  // namespace kvbridge::server
