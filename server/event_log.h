// Events on their way out of the transfer's path: a bounded queue and one thread that
// hands them to a sink.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"

#include "core/base/mutex.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::server {

// Thread contract: every method may be called from any thread. Offer never waits for the sink.
class EventLog {
 public:
  using Sink = std::function<void(const v1::WatchEventsResponse&)>;

  // `sink` is called from the log's own thread, one event at a time, in order.
  explicit EventLog(Sink sink, size_t capacity = 8192);
  ~EventLog() { Stop(); }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // Drops the new event, and counts it, when the queue is full or stopped.
  void Offer(v1::WatchEventsResponse event);

  // Hands out what is queued, then ends the thread. Idempotent.
  void Stop();

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  void Main();

  const Sink sink_;
  const size_t capacity_;
  std::atomic<uint64_t> dropped_{0};
  base::Mutex mutex_;
  base::CondVar wake_;
  std::deque<v1::WatchEventsResponse> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  base::Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace kvbridge::server
