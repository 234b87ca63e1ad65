#include "core/guard/quality_drift.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace kvbridge::guard {
namespace {

constexpr double kBound = 0.02;

DriftBounds KlOnly(double false_alarm_reports) {
  return {.kl_nats = kBound, .false_alarm_reports = false_alarm_reports};
}

// Reports until the alarm, at most `most`.
template <typename Draw>
int ReportsUntilAlarm(QualityDrift drift, int most, Draw draw) {
  for (int i = 1; i <= most; ++i) {
    if (drift.Add(draw(), 0)) return i;
  }
  return most;
}

// The mean of a heavy-tailed figure that sits exactly on the bound: the worst of the null.
TEST(QualityDriftTest, FalseAlarmsAreAsRareAsStatedWhateverTheDistribution) {
  constexpr double kReports = 500;
  std::mt19937 random(1);
  const double sigma = 1;
  std::lognormal_distribution<double> heavy(std::log(kBound) - sigma * sigma / 2, sigma);
  std::exponential_distribution<double> light(1 / kBound);
  std::bernoulli_distribution rare(0.2);
  const auto mean = [&](auto draw) {
    double sum = 0;
    for (int i = 0; i < 200; ++i)
      sum += ReportsUntilAlarm(QualityDrift(KlOnly(kReports)), 100000, draw);
    return sum / 200;
  };
  EXPECT_GT(mean([&] { return heavy(random); }), kReports);
  EXPECT_GT(mean([&] { return light(random); }), kReports);
  EXPECT_GT(mean([&] { return rare(random) ? 5 * kBound : 0; }), kReports);
}

TEST(QualityDriftTest, TwiceTheBoundIsSeenWithinAFewDozenReports) {
  std::mt19937 random(2);
  std::exponential_distribution<double> worse(1 / (2 * kBound));
  double sum = 0;
  for (int i = 0; i < 100; ++i) {
    sum += ReportsUntilAlarm(QualityDrift(KlOnly(10000)), 100000, [&] { return worse(random); });
  }
  EXPECT_LT(sum / 100, 80);
}

TEST(QualityDriftTest, ALongGoodTimeDoesNotHideAChange) {
  QualityDrift drift(KlOnly(10000));
  for (int i = 0; i < 100000; ++i) ASSERT_FALSE(drift.Add(kBound / 2, 0));
  const int seen = ReportsUntilAlarm(drift, 1000, [] { return 3 * kBound; });
  EXPECT_LT(seen, 20);
}

TEST(QualityDriftTest, NoSingleReportRaisesAnAlarm) {
  QualityDrift drift(KlOnly(100));
  EXPECT_FALSE(drift.Add(1e300, 0));
  EXPECT_FALSE(QualityDrift(KlOnly(100)).Add(INFINITY, 0));
}

TEST(QualityDriftTest, DisagreementIsWatchedByItself) {
  QualityDrift drift({.disagreement = 0.1, .false_alarm_reports = 1000});
  int reports = 0;
  while (!drift.Add(0, 0.4)) ASSERT_LT(++reports, 30);
}

TEST(QualityDriftTest, WithoutBoundsNothingIsWatched) {
  QualityDrift drift({});
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(drift.Add(100, 1));
  EXPECT_EQ(drift.evidence(), 0);
}

TEST(QualityDriftTest, AnAlarmBeginsAnew) {
  QualityDrift drift(KlOnly(100));
  while (!drift.Add(3 * kBound, 0)) {
  }
  EXPECT_EQ(drift.evidence(), 0);
  EXPECT_FALSE(drift.Add(3 * kBound, 0));
}

}  // namespace
}  // namespace kvbridge::guard
