#include "server/service_manager.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace kvbridge::server {
namespace {

// Often enough that one late answer does not kill it.
constexpr int kAnswersPerPatience = 3;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

ServiceManager::Options ServiceManager::FromEnvironment() {
  int64_t microseconds = 0;
  int64_t pid = 0;
  // A watchdog may be meant for another process that inherited its environment.
  const bool mine = !absl::SimpleAtoi(Variable("WATCHDOG_PID"), &pid) || pid == getpid();
  if (!mine || !absl::SimpleAtoi(Variable("WATCHDOG_USEC"), &microseconds)) microseconds = 0;
  return {.socket = Variable("NOTIFY_SOCKET"), .patience = absl::Microseconds(microseconds)};
}

ServiceManager::ServiceManager(Options options, std::function<bool()> alive)
    : options_(std::move(options)), alive_(std::move(alive)) {
  if (!options_.socket.empty() && options_.patience > absl::ZeroDuration()) {
    watch_ = std::thread([this] { Watch(); });
  }
}

ServiceManager::~ServiceManager() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  if (watch_.joinable()) watch_.join();
}

void ServiceManager::Reloading() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t microseconds = int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000;
  Say(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", microseconds));
}

void ServiceManager::Say(absl::string_view state) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& path = options_.socket;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  (void)sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), length);
  close(fd);
}

void ServiceManager::Watch() {
  base::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (alive_()) Say("WATCHDOG=1");
    wake_.WaitFor(&mutex_, options_.patience / kAnswersPerPatience);
  }
}

}  // namespace kvbridge::server
