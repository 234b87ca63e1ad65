// UCX's context and worker, and the one thread that may touch them.
//
// Everything in this module that belongs to UCX, or to an inbox or outbox, is used on this thread
// alone and needs no lock; others hand it tasks. It sleeps on the worker's event descriptor.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <ucp/api/ucp.h>

#include "core/base/mutex.h"

namespace kvbridge::ucx {

class Worker {
 public:
  static absl::StatusOr<std::shared_ptr<Worker>> Create(const std::string& transports);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // `tick` is called after tasks, and every 100 ms while it answers true.
  void Start(std::function<bool()> tick);
  // Runs what was posted, lets connections finish closing for a bounded time, and joins the thread.
  void Stop();

  // Runs `task` on the thread, in order; from any thread. After Stop it is dropped.
  void Post(std::function<void()> task);

  // For the thread itself.
  ucp_worker_h handle() const { return worker_; }
  void CloseEndpoint(ucp_ep_h endpoint, bool flush);

 private:
  Worker() = default;
  absl::Status Open(const std::string& transports);
  void Run();
  bool RunPosted();
  void Tick(absl::Time now);
  void Sleep();
  static void OnClosed(void* request, ucs_status_t status, void* self);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int ucx_fd_ = -1;  // the worker's own
  int wake_fd_ = -1;
  std::function<bool()> tick_;
  absl::Time next_tick_ = absl::InfiniteFuture();
  int closing_ = 0;  // endpoints
  std::atomic<bool> stop_{false};
  base::Mutex mutex_;
  std::vector<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvbridge::ucx
