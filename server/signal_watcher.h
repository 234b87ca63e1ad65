// SIGTERM, SIGINT and SIGHUP as calls on an ordinary thread.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace kvbridge::server {

// Blocks them in the calling thread and in all that it starts afterwards: call it first in
// main, so that none is lost while the rest is slow. They wait for a SignalWatcher. SIGPIPE is
// ignored.
void HoldSignals();

// Thread contract: made and destroyed by one thread.
class SignalWatcher {
 public:
  // Calls `on_signal` with each signal, those on hold included, from the watcher's own thread.
  explicit SignalWatcher(std::function<void(int)> on_signal);
  // No call comes after it.
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace kvbridge::server
