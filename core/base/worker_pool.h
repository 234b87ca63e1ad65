// The one thread pool of a process. Requests share it by units of work: a *job* runs one unit, a
// *loop* is the parallel inside of a job. An idle worker helps the oldest running loop
// before it takes a new job, so a lone request uses every core and a full queue never has more
// threads than cores.
//
// Thread contract: all methods may be called from any thread. ParallelFor is meant to be called
// from inside a job (or from any outside thread); the caller takes part in its own loop, so nested
// loops cannot deadlock. Ownership: a job owns what it captured; every queued job runs, also during
// Stop().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "core/base/mutex.h"

namespace kvbridge::base {

class WorkerPool {
 public:
  struct Options {
    int threads = 0;  // 0: one per CPU this process may run on (sched_getaffinity).
    size_t max_jobs =
        4096;  // Queue bound. Submit answers RESOURCE_EXHAUSTED when full: the new job is dropped.
  };

  static absl::StatusOr<std::unique_ptr<WorkerPool>> Create(Options options);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Queues a job, first in first out.
  absl::Status Submit(std::function<void()> job);

  // The same from inside a job, for what it leaves to be done: never refused, since that is no more
  // than the job itself was.
  void Resubmit(std::function<void()> job);

  // Runs body(i) for i in [0, n), on the caller and on idle workers; returns when all are done.
  // No order is promised between iterations.
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body);

  // Runs what is queued, then joins. Idempotent.
  void Stop();

  int threads() const { return thread_count_; }
  size_t queued_jobs() const;
  // Counts finished jobs and loop iterations: liveness watches it move while work is queued.
  uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }

 private:
  struct Loop;

  explicit WorkerPool(Options options);
  void WorkerMain();
  void RunLoop(Loop& loop);
  std::shared_ptr<Loop> OldestOpenLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_jobs_;
  int thread_count_ = 0;
  std::atomic<uint64_t> progress_{0};

  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Loop>> loops_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> workers_;
};

}  // namespace kvbridge::base
