#include "server/liveness.h"

namespace kvbridge::server {

Verdict Liveness::Check() {
  const uint64_t progress = workers_.progress();
  const bool waiting = workers_.queued_jobs() > 0;
  const absl::Time now = clock_.Now();
  base::MutexLock lock(&mutex_);
  if (!waiting) {
    stall_.reset();
  } else if (!stall_.has_value() || stall_->progress != progress) {
    stall_ = Stall{progress, now};
  }
  if (!stall_.has_value() || now - stall_->since < kPatience) return {};
  return {false, "workers have finished nothing for " + absl::FormatDuration(now - stall_->since)};
}

}  // namespace kvbridge::server
