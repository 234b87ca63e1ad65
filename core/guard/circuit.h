// A route's circuit breaker: a route that keeps failing falls back at once, without costing anybody
// time, and is tried again later.
//
//   closed     every transfer is tried; opens when too large a share of a window's transfers failed
//   open       none is tried, for `open_for`
//   half open  `probes` transfers are tried, no more at a time; when that many in a row have
//              succeeded it closes, when one fails it opens again
//
// The window slides in steps of a tenth.
#pragma once

#include <array>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"

namespace kvbridge::guard {

enum class CircuitState : uint8_t { kClosed, kOpen, kHalfOpen };
absl::string_view Name(CircuitState state);  // "closed", "open", "half_open"

// What an operator says; kAuto leaves it to the circuit.
enum class CircuitOverride : uint8_t { kAuto, kForceClosed, kForceOpen };

struct CircuitPolicy {
  bool enabled = true;
  absl::Duration window = absl::Seconds(30);
  int32_t min_transfers = 20;
  double max_bad_share = 0.5;
  absl::Duration open_for = absl::Seconds(30);
  int32_t probes = 3;

  friend bool operator==(const CircuitPolicy&, const CircuitPolicy&) = default;
};

// How a transfer that was tried ended, as far as the route is to blame.
enum class TryResult : uint8_t { kGood, kBad, kNeutral };

// Thread contract: every method may be called from any thread. Times of one circuit are of one
// clock; when it steps back, the window is only longer.
class Circuit {
 public:
  explicit Circuit(const CircuitPolicy& policy) : policy_(policy) {}

  // Whether a transfer may be tried. Each that may is followed by one Ended.
  bool Admit(absl::Time now);
  // Whether the state changed.
  bool Ended(TryResult result, absl::Time now);

  // An override closes or opens it until the next; kAuto begins anew, closed.
  void Override(CircuitOverride override);
  void SetPolicy(const CircuitPolicy& policy);

  // Open becomes half open with the first transfer that may be tried.
  CircuitState state() const;

 private:
  static constexpr int kSlots = 10;
  struct Slot {
    int64_t index = -1;  // of the tenth of a window since the epoch
    int32_t total = 0;
    int32_t bad = 0;
  };

  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Open(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TooMany(TryResult result, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable base::Mutex mutex_;
  CircuitPolicy policy_ ABSL_GUARDED_BY(mutex_);
  CircuitOverride override_ ABSL_GUARDED_BY(mutex_) = CircuitOverride::kAuto;
  CircuitState state_ ABSL_GUARDED_BY(mutex_) = CircuitState::kClosed;
  absl::Time opened_ ABSL_GUARDED_BY(mutex_);
  int32_t trying_ ABSL_GUARDED_BY(mutex_) = 0;     // half open: admitted, not ended
  int32_t succeeded_ ABSL_GUARDED_BY(mutex_) = 0;  // half open
  std::array<Slot, kSlots> slots_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::guard
