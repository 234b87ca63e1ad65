// Brings works and workers together: whichever worker is free runs the unit that the scheduler
// names, and lets small works of the same mapper that are just as far share its pass over the
// weights.
//
// Every queued unit is one job of the WorkerPool, and every such job runs one pass; which one is
// decided when its turn comes. A job that finds nothing to do (its unit went with another's pass)
// ends at once.
//
// Thread contract: every method may be called from any thread and blocks for nobody's work.
// Ownership: always held by shared_ptr; jobs hold it too. Pool, backends and clock outlive all
// work.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/engine/scheduler.h"
#include "core/engine/sweep.h"

namespace kvbridge::engine {

class Dispatcher : public std::enable_shared_from_this<Dispatcher> {
 public:
  // Works share a pass while they have `pass_tokens` together, at most.
  Dispatcher(base::WorkerPool* pool, const base::Clock* clock, Scheduler::WeightOf weight_of,
             int64_t pass_tokens);

  // See Scheduler.
  Scheduler::Place Enter(absl::string_view tenant, double seconds, double until_deadline);
  void Leave(absl::string_view tenant);

  // RESOURCE_EXHAUSTED: the pool's queue is full, and nothing was kept.
  absl::Status Submit(const std::shared_ptr<Sweep>& sweep);
  // Ends what is queued of transfers that were refused, soon and on a worker.
  void ExpelRefused();

  size_t queued() const;

 private:
  struct Entry {
    std::shared_ptr<Sweep> sweep;
    Sweep::Pass pass;
    int64_t tokens;
  };
  struct Running {
    std::shared_ptr<Sweep> sweep;
    Sweep::Unit unit;
    device::TilePart part;
  };

  Scheduler::Ticket Queue(const std::shared_ptr<Sweep>& sweep);
  void QueueMore(const std::shared_ptr<Sweep>& sweep);
  std::vector<Entry> TakePass();
  Entry Claim(Scheduler::Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunPass();
  std::optional<Running> Start(const Entry& entry, size_t others);
  void Map(const std::vector<Running>& running);
  void EndRefused();

  base::WorkerPool& pool_;
  const base::Clock& clock_;
  const int64_t pass_tokens_;
  std::atomic<int32_t> passes_running_{0};

  mutable base::Mutex mutex_;
  Scheduler scheduler_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Scheduler::Ticket, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::engine
