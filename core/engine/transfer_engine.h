// Decides whether a transfer may begin, and makes it. Everything that can be refused is refused
// here, before a byte is read or a buffer allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/device/copy_backend.h"
#include "core/engine/admission.h"
#include "core/engine/decision.h"
#include "core/engine/rate_meter.h"
#include "core/engine/scheduler.h"
#include "core/engine/transfer.h"
#include "core/guard/route_policy.h"
#include "core/guard/transfer_spec.h"

namespace kvbridge::engine {

// Thread contract: every method may be called from any thread. Outlives its transfers.
class TransferEngine {
 public:
  struct Options {
    int32_t tile_tokens = 256;    // 16 to 4096
    int32_t tiles_in_flight = 2;  // of one transfer, 1 to 64
    // Workspace of one sweep, at most; 0 = nothing is swept. A sweep is granted while it leaves
    // half of what `limits` allow to others; where it isn't, the transfer goes tile by tile.
    uint64_t sweep_bytes = uint64_t{256} << 20;
    Limits limits;
    // A tenant's share of the workers when several wait, relative to the others'; above 0. Empty =
    // all equal. Called often and under a lock: answers at once.
    Scheduler::WeightOf tenant_weight;
  };
  // Borrowed; they outlive the engine.
  struct Deps {
    base::WorkerPool* pool = nullptr;
    device::Backend* backend = nullptr;
    const base::Clock* clock = nullptr;
  };

  // INVALID_ARGUMENT names the option or the missing dependency.
  static absl::StatusOr<std::unique_ptr<TransferEngine>> Create(const Options& options,
                                                                const Deps& deps);

  // Maps with `pin`'s artifact, or only moves, if it says so.
  // In order: guard::PreCheck, the estimate against the latency budget, admission, positions.
  // `pin` is not null; `policy` is valid.
  std::variant<std::shared_ptr<Transfer>, Decision> Begin(guard::TransferSpec spec,
                                                          const guard::RoutePolicy& policy,
                                                          ArtifactPin pin);

  // Maps a tile of zeros three times and records the faster of the last two (the first finds cold
  // caches and wakes the workers), so that Plan and latency budgets have this machine's rate before
  // the first transfer. For whoever has just loaded an artifact; blocks for three tiles. Errors are
  // the backend's.
  absl::Status MeasureRate(const device::ResidentMapper& mapper);

  int32_t tile_tokens() const { return options_.tile_tokens; }
  int32_t tiles_in_flight() const { return options_.tiles_in_flight; }
  const Admission& admission() const { return *admission_; }
  // Units of work that wait for a worker.
  size_t queued_units() const;
  // Keys are mapper digests (in tokens) and what planes add (in bytes).
  RateMeter& rates() { return rates_; }

 private:
  // An estimate decides about a request only while it is this fresh: one that refuses everything
  // would otherwise never be measured again.
  static constexpr absl::Duration kRateLifetime = absl::Seconds(30);

  TransferEngine(const Options& options, const Deps& deps, std::shared_ptr<Admission> admission);

  device::Backend& BackendOf(const ArtifactPin& pin);
  std::optional<double> ExpectedSeconds(const ArtifactPin& pin, int64_t tokens,
                                        absl::Time now) const;
  // Measured or, before that, guessed: for the scheduler, which only compares.
  double SecondsPerToken(const ArtifactPin& pin) const;
  struct Need {
    Claim claim;
    int64_t sweep_tokens = 0;  // what claim.wish_bytes are for
  };
  Need NeedOf(const guard::TransferSpec& spec, int64_t mapped_tokens, const ArtifactPin& pin);

  const Options options_;
  const Deps deps_;
  const std::shared_ptr<Admission> admission_;
  RateMeter rates_;
  device::CopyBackend mover_;
  const std::shared_ptr<Dispatcher> dispatcher_;
};

}  // namespace kvbridge::engine
