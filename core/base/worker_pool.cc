#include "core/base/worker_pool.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include <sched.h>

namespace kvbridge::base {
namespace {

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

// A loop lives on through its shared_ptr until the last helper has left it; `body` itself is only
// called while the caller still waits, since the caller leaves after `done` reached `n`.
struct WorkerPool::Loop {
  Loop(int64_t count, absl::FunctionRef<void(int64_t)> fn) : n(count), body(fn) {}
  const int64_t n;
  absl::FunctionRef<void(int64_t)> body;
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
  Mutex mutex;
  CondVar all_done;
  bool finished ABSL_GUARDED_BY(mutex) = false;
};

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Create(Options options) {
  if (options.threads < 0 || options.threads > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker_pool.threads: expected 0..4096, got ", options.threads));
  }
  auto pool = std::unique_ptr<WorkerPool>(new WorkerPool(options));
  for (int i = 0; i < pool->thread_count_; ++i) {
    pool->workers_.emplace_back([p = pool.get()] { p->WorkerMain(); });
  }
  return pool;
}

WorkerPool::WorkerPool(Options options)
    : max_jobs_(options.max_jobs),
      thread_count_(options.threads > 0 ? options.threads : UsableCpus()) {}

WorkerPool::~WorkerPool() { Stop(); }

absl::Status WorkerPool::Submit(std::function<void()> job) {
  MutexLock lock(&mutex_);
  if (stopping_) return absl::UnavailableError("worker pool: stopped");
  if (jobs_.size() >= max_jobs_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("worker pool: ", jobs_.size(), " jobs queued, the limit is ", max_jobs_));
  }
  jobs_.push_back(std::move(job));
  wake_.Signal();
  return absl::OkStatus();
}

// Also while stopping: the worker that calls this comes back for the queue.
void WorkerPool::Resubmit(std::function<void()> job) {
  MutexLock lock(&mutex_);
  jobs_.push_back(std::move(job));
  wake_.Signal();
}

void WorkerPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  if (n <= 0) return;
  if (n == 1) {
    body(0);
    progress_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto loop = std::make_shared<Loop>(n, body);
  {
    MutexLock lock(&mutex_);
    loops_.push_back(loop);
    wake_.SignalAll();
  }
  RunLoop(*loop);
  {
    MutexLock lock(&mutex_);
    loops_.erase(std::remove(loops_.begin(), loops_.end(), loop), loops_.end());
  }
  MutexLock lock(&loop->mutex);
  while (!loop->finished) loop->all_done.Wait(&loop->mutex);
}

void WorkerPool::RunLoop(Loop& loop) {
  int64_t ran = 0;
  for (;;) {
    const int64_t i = loop.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= loop.n) break;
    loop.body(i);
    ++ran;
    progress_.fetch_add(1, std::memory_order_relaxed);
  }
  if (ran == 0) return;
  if (loop.done.fetch_add(ran, std::memory_order_acq_rel) + ran == loop.n) {
    MutexLock lock(&loop.mutex);
    loop.finished = true;
    loop.all_done.Signal();
  }
}

std::shared_ptr<WorkerPool::Loop> WorkerPool::OldestOpenLoop() {
  for (const auto& loop : loops_) {
    if (loop->next.load(std::memory_order_relaxed) < loop->n) return loop;
  }
  return nullptr;
}

void WorkerPool::WorkerMain() {
  for (;;) {
    std::function<void()> job;
    std::shared_ptr<Loop> loop;
    {
      MutexLock lock(&mutex_);
      while ((loop = OldestOpenLoop()) == nullptr && jobs_.empty() && !stopping_) {
        wake_.Wait(&mutex_);
      }
      if (loop == nullptr) {
        if (jobs_.empty()) return;  // Stopping, and nothing is left to run.
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
    }
    if (loop != nullptr) {
      RunLoop(*loop);
    } else {
      job();
      progress_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void WorkerPool::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  for (auto& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
}

size_t WorkerPool::queued_jobs() const {
  MutexLock lock(&mutex_);
  return jobs_.size();
}

}  // namespace kvbridge::base
