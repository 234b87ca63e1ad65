#include "core/fit/parallel.h"

namespace kvbridge::fit {
namespace {

// What iterations share.
class Loop {
 public:
  Loop(const Loops& loops, absl::string_view stage, int64_t n)
      : loops_(loops), stage_(stage), n_(n) {}

  void Run(int64_t i, absl::FunctionRef<absl::Status(int64_t)> body) {
    if (failed_.load(std::memory_order_relaxed)) return;
    absl::Status status =
        loops_.stop.stop_requested() ? absl::CancelledError("interrupted") : body(i);
    base::MutexLock lock(&mutex_);
    if (!status.ok()) {
      failed_ = true;
      if (first_ < 0 || i < first_) {
        first_ = i;
        status_ = std::move(status);
      }
    }
    ++done_;
    if (loops_.progress) {
      loops_.progress(stage_, static_cast<double>(done_) / static_cast<double>(n_));
    }
  }

  absl::Status status() {
    base::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  const Loops& loops_;
  const absl::string_view stage_;
  const int64_t n_;
  std::atomic<bool> failed_{false};
  base::Mutex mutex_;
  int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t first_ ABSL_GUARDED_BY(mutex_) = -1;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status ForEach(const Loops& loops, absl::string_view stage, int64_t n,
                     absl::FunctionRef<absl::Status(int64_t)> body) {
  Loop loop(loops, stage, n);
  if (loops.pool == nullptr) {
    for (int64_t i = 0; i < n; ++i) loop.Run(i, body);
  } else {
    loops.pool->ParallelFor(n, [&](int64_t i) { loop.Run(i, body); });
  }
  return loop.status();
}

}  // namespace kvbridge::fit
