// Time as a dependency, so that deadlines and stage times can be tested without waiting.
#pragma once

#include "absl/time/time.h"

namespace kvbridge::base {

// Goes on evenly, whatever happens to the machine's calendar: only differences mean something. It
// starts at the calendar's time of its first use, for the whole process.
absl::Time SteadyNow();

// Thread contract: every method may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  // Steady: for whatever lasts or is due.
  virtual absl::Time Now() const = 0;
  // The calendar's, for people. It may be set forward and back at any moment.
  virtual absl::Time WallNow() const = 0;
};

// The machine's clocks.
class SystemClock final : public Clock {
 public:
  absl::Time Now() const override { return SteadyNow(); }
  absl::Time WallNow() const override;
};

}  // namespace kvbridge::base
