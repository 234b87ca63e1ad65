#include "server/task_thread.h"

#include <utility>

namespace kvbridge::server {

TaskThread::TaskThread() : thread_([this] { Main(); }) {}

absl::Status TaskThread::Post(std::function<void()> task) {
  base::MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError("the server is shutting down");
  if (tasks_.size() >= kMaxTasks) {
    return absl::ResourceExhaustedError("too many tasks wait already");
  }
  tasks_.push_back(std::move(task));
  wake_.Signal();
  return absl::OkStatus();
}

void TaskThread::Stop() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  base::MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void TaskThread::Main() {
  for (;;) {
    std::function<void()> task;
    {
      base::MutexLock lock(&mutex_);
      while (!stopping_ && tasks_.empty()) wake_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace kvbridge::server
