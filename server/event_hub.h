// Events on their way to whoever watches: one bounded queue per watcher, so that one who does not
// read loses events (counted) and holds up nobody.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "core/base/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::server {

// Thread contract: every method may be called from any thread.
class EventHub {
 public:
  static constexpr size_t kMaxWatchers = 64;
  static constexpr size_t kRecent = 256;
  static constexpr size_t kQueue = 1024;  // events that wait for one watcher's connection

  EventHub() = default;
  EventHub(const EventHub&) = delete;
  EventHub& operator=(const EventHub&) = delete;

  // A stream of events from now on, of one route or, when `route` is empty, of all. It ends with
  // RESOURCE_EXHAUSTED when too many watch, with UNAVAILABLE after Close.
  grpc::ServerWriteReactor<v1::WatchEventsResponse>* Watch(const std::string& route);

  // Never waits. A full queue drops the new event.
  void Publish(const v1::WatchEventsResponse& event);

  // The last that were published, newest first; at most kRecent.
  std::vector<v1::WatchEventsResponse> Recent();

  // Ends every stream, and those that come.
  void Close();

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  uint64_t sent() const { return sent_.load(std::memory_order_relaxed); }

 private:
  class Stream;

  std::atomic<uint64_t> dropped_{0};
  std::atomic<uint64_t> sent_{0};
  base::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::WatchEventsResponse> recent_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace kvbridge::server
