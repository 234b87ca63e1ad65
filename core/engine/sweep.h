// One TileWork on its way through the layers, unit by unit: a unit is some layers of one tile.
//
// A work of one tile takes its source at once and goes from one group of layers to the next. A
// longer one is swept: its first group is a single layer, and all of its tiles pass a group before
// the work has passed it.
//
// Thread contract: every method may be called from any thread; up to `lanes` units run at once.
// Callbacks of the work come one at a time, under no lock, from whoever made them due.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"
#include "core/device/backend.h"
#include "core/engine/scheduler.h"
#include "core/engine/transfer.h"
#include "core/kv/kv_view.h"

namespace kvbridge::engine {

class Sweep {
 public:
  struct Unit {
    size_t tile;
    kv::LayerRange layers;
    int64_t tokens;  // of the tile
  };
  // What works must have in common to share a pass over the weights.
  struct Pass {
    const device::ResidentMapper* resident = nullptr;  // null: shares with nobody
    kv::LayerRange layers;
    friend bool operator==(const Pass&, const Pass&) = default;
  };

  // `transfer` has checked the work and counted it.
  Sweep(std::shared_ptr<Transfer> transfer, TileWork work, int32_t lanes);

  // How many more units should be queued now, at most `most`; each is taken once.
  int32_t Offer(int32_t most);
  // A queued unit's turn. None: there is none that could start.
  std::optional<Unit> Take();
  // Makes the unit's tile ready. None: it is all padding, and dealt with. After it, or what the
  // device made of it, comes Close().
  absl::StatusOr<std::optional<device::TilePart>> Open(const Unit& unit);
  // `pace`: which part of the machine it had.
  void Close(const Unit& unit, const absl::StatusOr<device::TileChecks>& checks,
             absl::Duration took, double pace);
  // Once refused(): what is not running ends now.
  void Abort();

  // The next unit's, of a work that is not being worked on.
  Pass NextPass() const;
  // Expected seconds of a unit that shares its pass with `others`.
  double SecondsOf(const Unit& unit, size_t others) const;

  bool refused() const { return refused_->load(std::memory_order_acquire); }
  device::Backend& backend() const { return *transfer_->env_.backend; }
  const device::ResidentMapper& resident() const { return *transfer_->pin_.resident; }
  const std::string& tenant() const { return tenant_; }
  Scheduler::Place place() const { return place_; }
  int64_t tokens() const { return tokens_; }

 private:
  struct Tile {
    kv::TokenRange tokens;                           // of the selection, at most tile_tokens
    int64_t target_begin;                            // token of the target that is tokens.begin
    int64_t pads;                                    // leading padding: zeroed, not mapped
    std::unique_ptr<device::PreparedTile> prepared;  // from its first unit on; null: all padding
    int32_t source_layers = std::numeric_limits<int32_t>::max();  // see device::PreparedTile
    int32_t done = 0;                                             // layers
    absl::Duration preparing;                                     // not yet counted as busy
    bool running = false;
  };
  enum class Event { kNone, kSourceReleased, kLayers, kDone };

  kv::LayerRange GroupOf(int32_t layer) const;
  kv::LayerRange NextLayers(const Tile& tile) const;
  absl::Status Prepare(Tile& tile);
  absl::Status CheckMemory() const;
  void ZeroPads(const Tile& tile, kv::LayerRange layers) const;
  Event NextEvent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle();
  void Call(Event event, kv::LayerRange layers);
  void Finish();

  std::shared_ptr<Transfer> transfer_;  // until the work is done
  TileWork work_;
  const std::shared_ptr<const std::atomic<bool>> refused_;  // the transfer, or finished
  const std::string tenant_;
  const Scheduler::Place place_;
  const int64_t tokens_;
  const int32_t layers_;
  const bool swept_;
  const int32_t lanes_;
  const int32_t unit_layers_;
  const absl::Time submitted_;
  const std::function<bool()> cancelled_;

  base::Mutex mutex_;
  std::vector<Tile> tiles_;  // guarded by mutex_, but for `prepared` of a running tile
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // the first error ends the work
  int32_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t published_ ABSL_GUARDED_BY(mutex_) = 0;  // layers
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool source_released_ ABSL_GUARDED_BY(mutex_) = false;
  bool settling_ ABSL_GUARDED_BY(mutex_) = false;  // somebody is in a callback
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration busy_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::engine
