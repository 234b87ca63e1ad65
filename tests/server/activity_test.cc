#include "server/activity.h"

#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1700000000) + absl::Milliseconds(250);

TEST(ActivityTest, AMinuteIsCountedByRouteAndSecond) {
  Activity activity;
  activity.Count("a", kNow - absl::Seconds(59), {.applied = 1, .tokens = 100});
  activity.Count("b", kNow - absl::Seconds(1), {.fell_back = 1});
  activity.Count("a", kNow, {.applied = 1, .tokens = 20});
  const Activity::Minute minute = activity.LastMinute(kNow);
  EXPECT_EQ(minute.total, (DecisionCounts{.applied = 2, .fell_back = 1, .tokens = 120}));
  EXPECT_EQ(minute.routes.at("a"), (DecisionCounts{.applied = 2, .tokens = 120}));
  EXPECT_EQ(minute.routes.at("b"), (DecisionCounts{.fell_back = 1}));
  EXPECT_EQ(minute.seconds[0].tokens, 100);
  EXPECT_EQ(minute.seconds[58].fell_back, 1);
  EXPECT_EQ(minute.seconds[59].tokens, 20);
  EXPECT_EQ(minute.span, absl::Milliseconds(59250));
}

TEST(ActivityTest, WhatIsOlderIsForgotten) {
  Activity activity;
  activity.Count("a", kNow, {.applied = 1});
  EXPECT_EQ(activity.LastMinute(kNow + absl::Seconds(59)).total.applied, 1);
  EXPECT_EQ(activity.LastMinute(kNow + absl::Seconds(60)).total.applied, 0);
  activity.Count("a", kNow + absl::Seconds(60), {.applied = 1});
  EXPECT_EQ(activity.LastMinute(kNow).total.applied, 0)
      << "it was dropped when a minute had passed";
}

TEST(ActivityTest, EventsOutOfOrderAreAllCounted) {
  Activity activity;
  activity.Count("a", kNow, {.applied = 1});
  activity.Count("a", kNow - absl::Seconds(2), {.applied = 1});
  EXPECT_EQ(activity.LastMinute(kNow).total.applied, 2);
}

TEST(ActivityTest, AClockThatWasSetBackShowsNothingOfTheFuture) {
  Activity activity;
  activity.Count("a", kNow, {.applied = 1});
  const absl::Time earlier = kNow - absl::Hours(1);
  activity.Count("a", earlier, {.fell_back = 1});
  EXPECT_EQ(activity.LastMinute(earlier).total, (DecisionCounts{.fell_back = 1}));
}

TEST(ActivityTest, WithoutDecisionsThereIsNothing) {
  const Activity::Minute minute = Activity().LastMinute(kNow);
  EXPECT_EQ(minute.total, DecisionCounts());
  EXPECT_TRUE(minute.routes.empty());
}

}  // namespace
}  // namespace kvbridge::server
