// Tells a transfer how far prefill has filled the source pool, so that mapping starts before
// prefill ends. On the inline plane the transfer waits for all of it.
//
// Thread contract: any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/time/time.h"

#include "client/cpp/steady_clock.h"

namespace kvbridge::client {

class SourceProgress {
 public:
  // Tokens [0, token_end) are written in every layer.
  void Ready(int64_t token_end) {
    const std::lock_guard lock(mutex_);
    token_end_ = std::max(token_end_, token_end);
    changed_.notify_all();
  }
  // No more will come, done or not. The end of the transfer closes it as well.
  void Close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

  // For the client: blocks until more than `told` tokens are ready, and says how many; nothing once
  // it was closed without more, at the deadline, or when `over` is set and Wake() was called.
  std::optional<int64_t> Beyond(int64_t told, absl::Time deadline, const std::atomic<bool>& over) {
    std::unique_lock lock(mutex_);
    const auto news = [&] { return token_end_ > told || closed_ || over; };
    if (deadline == absl::InfiniteFuture()) {
      changed_.wait(lock, news);
    } else {
      changed_.wait_until(lock, ToSteady(deadline), news);
    }
    if (token_end_ <= told || over) return std::nullopt;
    return token_end_;
  }
  void Wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  int64_t token_end_ = 0;
  bool closed_ = false;
};

}  // namespace kvbridge::client
