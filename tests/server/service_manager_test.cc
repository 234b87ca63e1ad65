#include "server/service_manager.h"

#include <atomic>
#include <cstring>
#include <string>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

// What systemd does: binds a datagram socket, here with an abstract name of this process.
class Manager {
 public:
  Manager() : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data() + 1, name_.size() - 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0);
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Manager() { close(fd_); }

  const std::string& name() const { return name_; }
  std::string Hear() const {
    char text[256];
    const ssize_t size = recv(fd_, text, sizeof(text), 0);
    return size < 0 ? "nothing" : std::string(text, static_cast<size_t>(size));
  }
  bool HasHeardNothing() const {
    char text[1];
    return recv(fd_, text, sizeof(text), MSG_DONTWAIT) < 0;
  }

 private:
  const std::string name_ = "@kvbridge-service-manager-test-" + std::to_string(getpid());
  const int fd_;
};

TEST(ServiceManagerTest, SaysThatItServesReloadsAndStops) {
  const Manager manager;
  const ServiceManager service({.socket = manager.name(), .patience = absl::ZeroDuration()},
                               [] { return true; });
  service.Ready();
  EXPECT_EQ(manager.Hear(), "READY=1");
  service.Reloading();
  EXPECT_EQ(manager.Hear().find("RELOADING=1\nMONOTONIC_USEC="), 0u);
  service.Stopping();
  EXPECT_EQ(manager.Hear(), "STOPPING=1");
}

TEST(ServiceManagerTest, SaysAgainAndAgainThatItIsAlive) {
  const Manager manager;
  const ServiceManager service({.socket = manager.name(), .patience = absl::Milliseconds(30)},
                               [] { return true; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(manager.Hear(), "WATCHDOG=1");
}

TEST(ServiceManagerTest, IsSilentOnceItIsNotAlive) {
  const Manager manager;
  std::atomic<int> asked{0};
  {
    const ServiceManager service({.socket = manager.name(), .patience = absl::Milliseconds(3)},
                                 [&asked] {
                                   ++asked;
                                   return false;
                                 });
    while (asked < 3) usleep(100);
  }
  EXPECT_TRUE(manager.HasHeardNothing());
}

TEST(ServiceManagerTest, WithoutAManagerNothingIsAskedAndNothingFails) {
  std::atomic<int> asked{0};
  const ServiceManager service({.socket = "", .patience = absl::Milliseconds(1)}, [&asked] {
    ++asked;
    return true;
  });
  service.Ready();
  service.Stopping();
  EXPECT_EQ(asked, 0);
}

TEST(ServiceManagerTest, AManagerThatIsGoneIsIgnored) {
  const ServiceManager service({.socket = "/nonexistent/notify", .patience = absl::ZeroDuration()},
                               [] { return true; });
  service.Ready();
}

TEST(ServiceManagerTest, ReadsItsEnvironment) {
  setenv("NOTIFY_SOCKET", "/run/notify", 1);
  setenv("WATCHDOG_USEC", "30000000", 1);
  unsetenv("WATCHDOG_PID");
  EXPECT_EQ(ServiceManager::FromEnvironment().socket, "/run/notify");
  EXPECT_EQ(ServiceManager::FromEnvironment().patience, absl::Seconds(30));
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceManager::FromEnvironment().patience, absl::ZeroDuration());
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) unsetenv(name);
}

}  // namespace
}  // namespace kvbridge::server
