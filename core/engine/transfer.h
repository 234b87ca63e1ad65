// One request's life between admission and decision.
//
// A plane (inline chunks, regions, memory in process) feeds tokens as they become complete. The map
// is token-wise independent, so they may come in any order and be mapped at the same time. A tile
// of tokens goes through all layers before the next one does; where both caches lie in memory that
// stays, longer works are *swept*, group of layers by group of layers over all their tiles, so that
// the target can start with layer 0 long before the last layer is mapped.
//
// Whatever happens, in whatever order, there is one decision: the first refusal wins, and Finish()
// seals it. A worker that is still inside the transfer when it is refused keeps the mapper, the
// reservation and the memory it works on alive until it has left.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/device/backend.h"
#include "core/engine/admission.h"
#include "core/engine/decision.h"
#include "core/engine/rate_meter.h"
#include "core/engine/scheduler.h"
#include "core/guard/pre_check.h"
#include "core/guard/reason.h"
#include "core/guard/route_policy.h"
#include "core/guard/transfer_spec.h"
#include "core/kv/kv_view.h"
#include "core/kv/positions.h"
#include "core/kv/token_set.h"

namespace kvbridge::engine {

class Dispatcher;

// An artifact in use. Whoever holds it keeps the mapper resident.
struct ArtifactPin {
  std::shared_ptr<const device::ResidentMapper> resident;
  bool proven = false;  // its evidence passes
  // The source was mapped elsewhere, and `resident` is a device::CopyMapper: it is only moved.
  bool moves = false;
};

// Tokens to map. The plane has validated both views (kv::Validate, kv::CheckWithin).
//
// Callbacks may be empty. They come from a worker thread, one at a time, and must not block:
//   on_source_released  once, at the latest before on_done: the source is read no more and the
//                       transfer has let source_owner go
//   on_layers           for each group of target layers, in order, once it is written for all of
//                       `tokens` and has passed the checks; never on a shadow route, never after a
//                       refusal was seen
//   on_done             once, last: the transfer holds nothing of this work any more. OK, or why
//                       not
struct TileWork {
  kv::TokenRange tokens;  // of the selection, within [first_token, covered_tokens)
  kv::KvView source;
  int64_t source_begin = 0;  // token of `source` that is tokens.begin
  std::shared_ptr<const void> source_owner;
  kv::KvView target;
  int64_t target_begin = 0;  // token of `target` that is tokens.begin
  std::shared_ptr<const void> target_owner;
  // Whether the memory of both views is what it was; empty = always. Asked whenever some of it was
  // read or written, before anything is made of that, by several workers at once; must not block.
  // DATA_LOSS refuses the transfer with transport.
  std::function<absl::Status()> check_memory;
  std::function<void()> on_source_released;
  std::function<void(kv::LayerRange)> on_layers;
  std::function<void(const absl::Status&)> on_done;
};

// Made by TransferEngine::Begin; always owned by a shared_ptr. Must not outlive its engine.
// Thread contract: every method may be called from any thread, also from a tile's callbacks.
class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Queues at most work_tokens() tokens. On an error no callback comes and the owners are dropped:
  //   CANCELLED           the transfer has been refused or finished
  //   INVALID_ARGUMENT    ranges outside the selection or the views, tokens submitted before, views
  //                       of another geometry
  //   FAILED_PRECONDITION works_in_flight() works are queued or running
  //   RESOURCE_EXHAUSTED  the worker pool's queue is full; the transfer is refused with overload
  // When it is mapped is the Scheduler's to say.
  absl::Status SubmitTile(TileWork work);

  // Stops at the next unit of work or device poll. The first refusal wins; false when there
  // was one already or the transfer has finished.
  bool Cancel(guard::Refusal refusal);
  // Whether it has been refused or finished; notices a deadline or budget that has passed.
  bool cancelled();

  // The decision, once: none for every caller but the first. Waits for nothing. Applied only if
  // every covered token was mapped, checked and in time; tokens that never came are shape_mismatch
  // unless the plane has said Cancel(transport) before.
  std::optional<Decision> Finish();

  // For the plane's own stages and counters.
  void AddStage(Stage stage, absl::Duration elapsed);
  void AddBytes(int64_t in, int64_t out);

  int64_t covered_tokens() const { return admissible_.covered_tokens; }
  // Room is reserved for so many works of so many tokens: some tiles, or one sweep.
  int64_t work_tokens() const { return room_.tokens; }
  int32_t works_in_flight() const { return room_.works; }
  const guard::TransferSpec& spec() const { return spec_; }
  const std::string& artifact_digest() const { return pin_.resident->mapper().digest; }
  // False on a shadow route: nothing of the result may leave.
  bool publish() const { return admissible_.publish; }
  // When it stops by itself: the earlier of deadline and end of the latency budget.
  absl::Time stop_at() const { return std::min(spec_.deadline, budget_end_); }
  // Expected seconds of the map; none while this mapper's rate is unmeasured.
  std::optional<double> expected_seconds() const { return expected_seconds_; }

 private:
  friend class Sweep;
  friend class TransferEngine;

  struct Room {
    int64_t tokens;  // of one work
    int32_t works;
  };

  // What the engine lends to all its transfers.
  struct Env {
    std::shared_ptr<Dispatcher> dispatcher;
    device::Backend* backend;
    const base::Clock* clock;
    RateMeter* rates;
    int32_t tile_tokens;
    int32_t tiles_in_flight;
  };

  struct Parts {
    guard::TransferSpec spec;
    guard::RoutePolicy policy;
    guard::Admissible admissible;
    ArtifactPin pin;
    Reservation reservation;
    Room room;
    kv::Positions positions;
    std::string salt;
    absl::Time budget_end;
    std::optional<double> expected_seconds;
    double seconds_per_token;  // as good an estimate as there is
    Scheduler::Place place;
  };

  Transfer(const Env& env, Parts parts);

  // What a Sweep says and asks of it.
  static absl::Status Stopped();
  void Fail(const absl::Status& device_error);
  absl::Status CheckLayers(const device::TileChecks& checks);
  void MarkDirty(const kv::KvView& target, int64_t begin, int64_t tokens);
  void WorkDone(int64_t tokens, const absl::Status& status, absl::Duration busy);
  // Leading tokens of `range` that are padding.
  int64_t Pads(kv::TokenRange range) const;
  absl::Duration Since(absl::Time start) const { return env_.clock->Now() - start; }

  absl::Status CheckWork(const TileWork& work) const;
  std::optional<guard::Refusal> WhyIncomplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Env env_;
  const guard::TransferSpec spec_;
  const guard::RoutePolicy policy_;
  const guard::Admissible admissible_;
  const ArtifactPin pin_;
  const Reservation reservation_;
  const Room room_;
  const kv::Positions positions_;
  const std::string salt_;
  const absl::Time budget_end_;
  const std::optional<double> expected_seconds_;
  const double seconds_per_token_;
  const Scheduler::Place place_;

  // Refused or finished: what workers poll, and the dispatcher when the transfer may be gone.
  const std::shared_ptr<std::atomic<bool>> stopped_ = std::make_shared<std::atomic<bool>>(false);

  mutable base::Mutex mutex_;
  std::optional<guard::Refusal> refusal_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  int32_t works_running_ ABSL_GUARDED_BY(mutex_) = 0;  // queued or running
  kv::TokenSet submitted_ ABSL_GUARDED_BY(mutex_);     // disjoint, so counting what is done
  int64_t done_tokens_ ABSL_GUARDED_BY(mutex_) = 0;    // proves completeness
  device::TileChecks checks_ ABSL_GUARDED_BY(mutex_);
  StageTimes stages_ ABSL_GUARDED_BY(mutex_){};
  int64_t bytes_in_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_out_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<int32_t> dirty_pages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::engine
