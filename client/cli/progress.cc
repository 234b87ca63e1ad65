#include "client/cli/progress.h"

#include <cstdio>
#include <utility>

#include "absl/time/time.h"
#include <unistd.h>

#include "core/base/clock.h"

namespace kvbridge::cli {

Progress::Progress(std::string what, bool quiet) : what_(std::move(what)) {
  if (!quiet) thread_ = std::thread([this] { Run(); });
}

Progress::~Progress() {
  done_.Notify();
  if (thread_.joinable()) thread_.join();
}

void Progress::Update(std::string what) {
  const base::MutexLock lock(&mutex_);
  what_ = std::move(what);
}

void Progress::Run() {
  const absl::Time started = base::SteadyNow();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  absl::Duration wait = absl::Seconds(2);
  while (!done_.WaitForNotificationWithTimeout(wait)) {
    const auto seconds = static_cast<int>(absl::ToInt64Seconds(base::SteadyNow() - started));
    {
      const base::MutexLock lock(&mutex_);
      std::fprintf(stderr, terminal ? "\r\x1b[K%s: %d s" : "%s: %d s\n", what_.c_str(), seconds);
    }
    wait = terminal ? absl::Seconds(1) : absl::Seconds(10);
  }
  if (terminal && base::SteadyNow() - started > absl::Seconds(2)) std::fprintf(stderr, "\r\x1b[K");
}

}  // namespace kvbridge::cli
