// A clock that stands still until a test moves it. For deadlines, budgets and stage times.
#pragma once

#include <atomic>

#include "absl/time/time.h"

#include "core/base/clock.h"

namespace kvbridge::test {

// Thread contract: every method may be called from any thread.
class FakeClock final : public base::Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixNanos(nanos_.load()); }
  absl::Time WallNow() const override { return Now(); }
  void Advance(absl::Duration d) { nanos_.fetch_add(absl::ToInt64Nanoseconds(d)); }

 private:
  std::atomic<int64_t> nanos_{1'700'000'000'000'000'000};
};

}  // namespace kvbridge::test
