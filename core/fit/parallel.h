// Loops of a fit: fallible, cancellable, with results that do not depend on the number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <stop_token>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/base/mutex.h"
#include "core/base/worker_pool.h"

namespace kvbridge::fit {

// How loops are run and watched. `pool` null = on the calling thread.
struct Loops {
  base::WorkerPool* pool = nullptr;
  std::stop_token stop;
  // Told the stage and how much of it is done, 0 to 1; called from any thread, one at a time.
  std::function<void(absl::string_view, double)> progress;
};

// Runs body(i) for i in [0, n). Answers the error of the lowest i that failed among those that ran;
// after the first failure no new iteration starts. CANCELLED once `stop` is requested.
absl::Status ForEach(const Loops& loops, absl::string_view stage, int64_t n,
                     absl::FunctionRef<absl::Status(int64_t)> body);

}  // namespace kvbridge::fit
