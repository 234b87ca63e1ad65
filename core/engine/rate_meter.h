// What this machine has been seen to do: seconds per unit, by key. The engine records one key per
// mapper digest, in tokens; planes record theirs in bytes. Unmeasured is not a number.
#pragma once

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kvbridge::engine {

// Thread contract: every method may be called from any thread.
class RateMeter {
 public:
  static constexpr size_t kMaxKeys = 256;

  // Adds an observation: `units` > 0 took `elapsed`. Older observations fade, each new one counting
  // for a fifth of the whole, so that the first (cold) ones are soon forgotten. A new key beyond
  // kMaxKeys takes the place of the one that was recorded longest ago.
  void Record(absl::string_view key, double units, absl::Duration elapsed);

  // Units-weighted mean; none before the first Record.
  std::optional<double> SecondsPerUnit(absl::string_view key) const;

  void Forget(absl::string_view key);

 private:
  struct Sums {
    double units = 0;
    double seconds = 0;
    uint64_t last = 0;  // tick of the last Record
  };
  mutable absl::Mutex mutex_;
  uint64_t tick_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, Sums> sums_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::engine
