#include "server/event_hub.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "server/grpc_status.h"

namespace kvbridge::server {

// Owned by the hub until it ended, and by gRPC until OnDone.
class EventHub::Stream final : public grpc::ServerWriteReactor<v1::WatchEventsResponse>,
                               public std::enable_shared_from_this<Stream> {
 public:
  Stream(EventHub* hub, std::string route) : hub_(*hub), route_(std::move(route)) {}

  // gRPC holds it from here on.
  grpc::ServerWriteReactor<v1::WatchEventsResponse>* Begin() {
    self_ = shared_from_this();
    StartSendInitialMetadata();  // tells the watcher that it misses nothing from here on
    return this;
  }

  void Offer(const v1::WatchEventsResponse& event) {
    const std::string& pair = event.has_event() ? event.event().pair() : event.route_event().pair();
    if (!route_.empty() && route_ != pair) return;
    base::MutexLock lock(&mutex_);
    if (ended_) return;
    if (queue_.size() >= kQueue) {
      hub_.dropped_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    queue_.push_back(event);
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  // A write that is under way ends first; gRPC gives it up when the call is cancelled or shut down.
  void End(absl::Status status) {
    base::MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
    status_ = std::move(status);
    if (queue_.empty()) Finish(ToGrpc(status_));
  }

  void OnWriteDone(bool ok) override {
    if (!ok) Forget();
    base::MutexLock lock(&mutex_);
    if (ok) hub_.sent_.fetch_add(1, std::memory_order_relaxed);
    if (!ok || ended_) {
      ended_ = true;
      Finish(ToGrpc(status_));
      return;
    }
    queue_.pop_front();
    if (!queue_.empty()) StartWrite(&queue_.front());
  }

  void OnCancel() override {
    Forget();
    End(absl::CancelledError("the watcher went away"));
  }
  void OnDone() override { self_.reset(); }

 private:
  void Forget() {
    base::MutexLock lock(&hub_.mutex_);
    hub_.streams_.erase(shared_from_this());
  }

  EventHub& hub_;
  const std::string route_;
  std::shared_ptr<Stream> self_;
  base::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_) = absl::CancelledError("the watcher went away");
  std::deque<v1::WatchEventsResponse> queue_ ABSL_GUARDED_BY(mutex_);  // the front is being written
};

grpc::ServerWriteReactor<v1::WatchEventsResponse>* EventHub::Watch(const std::string& route) {
  const auto stream = std::make_shared<Stream>(this, route);
  auto* reactor = stream->Begin();
  absl::Status refused;
  {
    base::MutexLock lock(&mutex_);
    if (closed_) {
      refused = absl::UnavailableError("the server is shutting down");
    } else if (streams_.size() >= kMaxWatchers) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("WatchEvents: expected at most ", kMaxWatchers, " watchers"));
    } else {
      streams_.insert(stream);
    }
  }
  if (!refused.ok()) stream->End(refused);
  return reactor;
}

void EventHub::Publish(const v1::WatchEventsResponse& event) {
  std::set<std::shared_ptr<Stream>> streams;
  {
    base::MutexLock lock(&mutex_);
    recent_.push_back(event);
    if (recent_.size() > kRecent) recent_.pop_front();
    streams = streams_;
  }
  for (const auto& stream : streams) stream->Offer(event);
}

std::vector<v1::WatchEventsResponse> EventHub::Recent() {
  base::MutexLock lock(&mutex_);
  return {recent_.rbegin(), recent_.rend()};
}

void EventHub::Close() {
  std::set<std::shared_ptr<Stream>> streams;
  {
    base::MutexLock lock(&mutex_);
    closed_ = true;
    streams.swap(streams_);
  }
  for (const auto& stream : streams) {
    stream->End(absl::UnavailableError("the server is shutting down"));
  }
}

}  // namespace kvbridge::server
