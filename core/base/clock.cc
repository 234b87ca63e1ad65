#include "core/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace kvbridge::base {

absl::Time SteadyNow() {
  using std::chrono::steady_clock;
  struct Start {
    absl::Time wall = absl::Now();
    steady_clock::time_point steady = steady_clock::now();
  };
  static const Start start;
  return start.wall + absl::FromChrono(steady_clock::now() - start.steady);
}

// absl::Now extrapolates from the cycle counter, and learns of a step seconds later.
absl::Time SystemClock::WallNow() const {
  return absl::FromChrono(std::chrono::system_clock::now());
}

}  // namespace kvbridge::base
