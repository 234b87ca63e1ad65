#include "server/signal_watcher.h"

#include <csignal>
#include <utility>

#include <pthread.h>

namespace kvbridge::server {
namespace {

// Wakes the watcher's thread so that it can end.
constexpr int kWake = SIGUSR1;

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, kWake}) sigaddset(&set, signal);
  return set;
}

}  // namespace

void HoldSignals() {
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

SignalWatcher::SignalWatcher(std::function<void(int)> on_signal)
    : thread_([this, on_signal = std::move(on_signal)] {
        const sigset_t set = Signals();
        int signal = 0;
        while (sigwait(&set, &signal) == 0 && !stopping_.load()) {
          if (signal != kWake) on_signal(signal);
        }
      }) {}

SignalWatcher::~SignalWatcher() {
  stopping_.store(true);
  pthread_kill(thread_.native_handle(), kWake);
  thread_.join();
}

}  // namespace kvbridge::server
