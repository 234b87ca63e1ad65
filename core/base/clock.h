// Time as a dependency, so that deadlines and stage times can be tested without waiting.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvbridge::base {

// Thread contract: Now() may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// The machine's clock.
class SystemClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace kvbridge::base
