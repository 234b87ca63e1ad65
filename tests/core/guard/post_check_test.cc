#include "core/guard/post_check.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace kvbridge::guard {
namespace {

RoutePolicy Bound(double max_abs) {
  RoutePolicy policy;
  policy.max_abs = max_abs;
  return policy;
}

TEST(PostCheckTest, FiniteWithinTheBoundPasses) {
  EXPECT_EQ(PostCheck({.max_abs = 10}, Bound(10), OverflowPolicy::kFail), std::nullopt);
  EXPECT_EQ(PostCheck({.max_abs = 3e38f}, Bound(std::numeric_limits<double>::infinity()),
                      OverflowPolicy::kFail),
            std::nullopt);
}

TEST(PostCheckTest, OneNanIsNonFiniteEvenBeyondTheBound) {
  const auto refusal =
      PostCheck({.non_finite = 1, .saturated = 1, .max_abs = 11}, Bound(10), OverflowPolicy::kFail);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, Reason::kNonFinite);
}

TEST(PostCheckTest, MagnitudeBoundIsExclusiveOfTheBoundItself) {
  const auto refusal =
      PostCheck({.max_abs = std::nextafter(10.0f, 11.0f)}, Bound(10), OverflowPolicy::kSaturate);
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, Reason::kMagnitudeBound);
}

TEST(PostCheckTest, SaturationFailsOnlyWhenAskedTo) {
  const device::TileChecks checks{.saturated = 3, .max_abs = 1};
  EXPECT_EQ(PostCheck(checks, Bound(10), OverflowPolicy::kFail)->reason, Reason::kMagnitudeBound);
  EXPECT_EQ(PostCheck(checks, Bound(10), OverflowPolicy::kSaturate), std::nullopt);
}

}  // namespace
}  // namespace kvbridge::guard
