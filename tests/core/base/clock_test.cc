#include "core/base/clock.h"

#include <chrono>

#include "gtest/gtest.h"

namespace kvbridge::base {
namespace {

TEST(ClockTest, AllClocksOfAProcessAgreeAndGoForward) {
  const SystemClock one, other;
  absl::Time before = SteadyNow();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = (i % 2 == 0 ? one : other).Now();
    EXPECT_GE(now, before);
    before = now;
  }
}

TEST(ClockTest, TheCalendarIsTheMachines) {
  const auto before = std::chrono::system_clock::now();
  const absl::Time now = SystemClock().WallNow();
  EXPECT_GE(now, absl::FromChrono(before));
  EXPECT_LE(now, absl::FromChrono(std::chrono::system_clock::now()));
}

}  // namespace
}  // namespace kvbridge::base
