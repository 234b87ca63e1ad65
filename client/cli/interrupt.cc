#include "client/cli/interrupt.h"

#include <chrono>
#include <csignal>

#include <pthread.h>
#include <unistd.h>

#include "client/cli/exit_code.h"

namespace kvbridge::cli {
namespace {

using Clock = std::chrono::steady_clock;
// timeout(1) and some shells signal the process and its group: one request, which arrives twice.
constexpr std::chrono::milliseconds kSameStroke{300};

// Wakes the waiter when there is nothing left to wait for.
constexpr int kFinish = SIGUSR1;

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, kFinish}) sigaddset(&set, signal);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  waiter_ = std::jthread([this] {
    const sigset_t waited = Signals();
    Clock::time_point first;
    for (int signal = 0; sigwait(&waited, &signal) == 0 && signal != kFinish;) {
      if (stop_.request_stop()) {
        first = Clock::now();
      } else if (Clock::now() - first > kSameStroke) {
        _exit(static_cast<int>(ExitCode::kInterrupted));
      }
    }
  });
}

Interrupt::~Interrupt() { pthread_kill(waiter_.native_handle(), kFinish); }

}  // namespace kvbridge::cli
