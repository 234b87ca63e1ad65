// Moments of a clock that goes on evenly, whatever is done to the machine's calendar: every
// deadline and duration of this library goes by it, and only differences mean something.
//
// Thread contract: pure functions.
#pragma once

#include <chrono>

#include "absl/time/time.h"

#include "grpc/support/time.h"

namespace kvbridge::client {

inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// For waits of the standard library.
inline std::chrono::steady_clock::time_point ToSteady(absl::Time when) {
  return std::chrono::steady_clock::time_point(absl::ToChronoNanoseconds(when - absl::UnixEpoch()));
}

// For ClientContext::set_deadline: how far away it is, which no calendar changes.
inline gpr_timespec ToGrpcDeadline(absl::Time when) {
  return gpr_time_from_nanos(absl::ToInt64Nanoseconds(when - SteadyNow()), GPR_TIMESPAN);
}

}  // namespace kvbridge::client
