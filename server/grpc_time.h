// gRPC's public API tells moments by the calendar, which may be set at any time; we tell them by a
// steady clock. So a moment is handed over as how far away it is.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

#include "core/base/clock.h"

namespace kvbridge::server {

// Beyond every call; the sum with what gRPC adds still fits.
inline constexpr absl::Duration kForever = absl::Hours(24 * 365);

inline std::chrono::system_clock::time_point ToGrpcTime(const base::Clock& clock, absl::Time when) {
  return absl::ToChronoTime(clock.WallNow() + std::min(when - clock.Now(), kForever));
}

inline absl::Time FromGrpcTime(const base::Clock& clock,
                               std::chrono::system_clock::time_point when) {
  if (when == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return clock.Now() + (absl::FromChrono(when) - clock.WallNow());
}

}  // namespace kvbridge::server
