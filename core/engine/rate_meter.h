// What this machine has been seen to do: seconds per unit, by key. The engine records one key per
// mapper digest, in tokens; planes record theirs in bytes. Unmeasured is not a number.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"

namespace kvbridge::engine {

struct Rate {
  double seconds_per_unit = 0;
  absl::Time measured_at;  // last observation
};

// Thread contract: every method may be called from any thread.
class RateMeter {
 public:
  static constexpr size_t kMaxKeys = 256;

  // Adds an observation: `units` took `elapsed`; ignored unless both are above 0. Older ones fade,
  // each new one counting for a fifth of the whole, so that the first (cold) ones are soon
  // forgotten. A new key beyond kMaxKeys takes the place of the one recorded longest ago.
  void Record(absl::string_view key, double units, absl::Duration elapsed, absl::Time now);

  // Mean over the units seen, recent ones weighing more; none before the first Record.
  std::optional<Rate> Get(absl::string_view key) const;

  // The fastest of the last kRecent observations. For planes: what a plane took includes the time
  // that its peer let it wait, so that only the fastest comes near what the plane itself can do.
  std::optional<Rate> Fastest(absl::string_view key) const;

 private:
  static constexpr size_t kRecent = 16;

  struct Sums {
    double units = 0;
    double seconds = 0;
    std::array<double, kRecent> recent;  // seconds per unit, a ring
    size_t count = 0;                    // observations so far
    absl::Time last;
  };
  mutable base::Mutex mutex_;
  absl::flat_hash_map<std::string, Sums> sums_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::engine
