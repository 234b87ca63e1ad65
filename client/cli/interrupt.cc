#include "client/cli/interrupt.h"

#include <atomic>
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

// Libraries start threads before main, which do not block what this class blocks: OpenBLAS does.
// A signal that one of them gets is sent on to the waiter.
std::atomic<pthread_t> waiter_thread;
static_assert(std::atomic<pthread_t>::is_always_lock_free);
void SendOn(int signal) { pthread_kill(waiter_thread.load(), signal); }

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
  waiter_thread = waiter_.native_handle();
  struct sigaction action {};
  action.sa_handler = SendOn;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    // What the parent wants ignored, such as SIGINT of a job in the background, stays so.
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == SendOn) std::signal(signal, SIG_DFL);
  }
  pthread_kill(waiter_.native_handle(), kFinish);
}

}  // namespace kvbridge::cli
