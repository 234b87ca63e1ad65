// Whether the workers still get anywhere. Asked by /livez, so it costs nothing in between.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/worker_pool.h"
#include "server/admin_http.h"

namespace kvbridge::server {

// Thread contract: Check may be called from any thread.
class Liveness {
 public:
  // Longer than any single unit of work takes on a machine that is worth keeping.
  static constexpr absl::Duration kPatience = absl::Seconds(60);

  // Both are borrowed.
  Liveness(const base::WorkerPool* workers, const base::Clock* clock)
      : workers_(*workers), clock_(*clock) {}

  // Not well when work has waited for kPatience, as far as the checks saw, and none was finished.
  Verdict Check();

 private:
  struct Stall {
    uint64_t progress = 0;
    absl::Time since;
  };

  const base::WorkerPool& workers_;
  const base::Clock& clock_;
  base::Mutex mutex_;
  std::optional<Stall> stall_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::server
