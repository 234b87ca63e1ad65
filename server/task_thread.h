// One thread for what takes seconds and must not hold up gRPC's: loading artifacts, preparing
// memory.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"

#include "core/base/mutex.h"

namespace kvbridge::server {

// Thread contract: every method may be called from any thread but the task thread itself.
class TaskThread {
 public:
  static constexpr size_t kMaxTasks = 256;  // at least the routes of a configuration

  TaskThread();
  ~TaskThread() { Stop(); }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Runs tasks one after the other. RESOURCE_EXHAUSTED drops the new task; UNAVAILABLE after Stop.
  absl::Status Post(std::function<void()> task);

  // Runs what was posted, then ends the thread. Idempotent.
  void Stop();

 private:
  void Main();

  base::Mutex mutex_;
  base::CondVar wake_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  base::Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace kvbridge::server
