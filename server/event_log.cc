#include "server/event_log.h"

#include <utility>

namespace kvbridge::server {

EventLog::EventLog(Sink sink, size_t capacity)
    : sink_(std::move(sink)), capacity_(capacity), thread_([this] { Main(); }) {}

void EventLog::Offer(v1::WatchEventsResponse event) {
  base::MutexLock lock(&mutex_);
  if (stopping_ || queue_.size() >= capacity_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queue_.push_back(std::move(event));
  wake_.Signal();
}

void EventLog::Stop() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  base::MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void EventLog::Main() {
  for (;;) {
    std::deque<v1::WatchEventsResponse> batch;
    {
      base::MutexLock lock(&mutex_);
      while (!stopping_ && queue_.empty()) wake_.Wait(&mutex_);
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (const auto& event : batch) sink_(event);
  }
}

}  // namespace kvbridge::server
