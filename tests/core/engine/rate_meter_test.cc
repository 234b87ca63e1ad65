#include "core/engine/rate_meter.h"

#include <string>

#include "gtest/gtest.h"

namespace kvbridge::engine {
namespace {

constexpr absl::Time kNow = absl::FromUnixSeconds(1'000'000);

TEST(RateMeterTest, UnmeasuredIsNotANumber) {
  RateMeter meter;
  EXPECT_FALSE(meter.Get("m").has_value());
  meter.Record("m", 0, absl::Seconds(1), kNow);
  meter.Record("m", 10, absl::ZeroDuration(), kNow);
  EXPECT_FALSE(meter.Get("m").has_value());
}

TEST(RateMeterTest, MeanWeighsUnitsAndFadesTheOld) {
  RateMeter meter;
  meter.Record("m", 100, absl::Seconds(10), kNow);
  EXPECT_DOUBLE_EQ(meter.Get("m")->seconds_per_unit, 0.1);
  meter.Record("m", 20, absl::Seconds(1), kNow + absl::Seconds(1));
  EXPECT_DOUBLE_EQ(meter.Get("m")->seconds_per_unit, (8.0 + 1.0) / (80.0 + 20.0));
  EXPECT_EQ(meter.Get("m")->measured_at, kNow + absl::Seconds(1));
  for (int i = 0; i < 100; ++i) meter.Record("m", 100, absl::Seconds(2), kNow);
  EXPECT_NEAR(meter.Get("m")->seconds_per_unit, 0.02, 1e-9);
}

TEST(RateMeterTest, FastestIsOfTheLastSixteenObservations) {
  RateMeter meter;
  EXPECT_FALSE(meter.Fastest("in").has_value());
  meter.Record("in", 100, absl::Seconds(1), kNow);
  for (int i = 0; i < 15; ++i) meter.Record("in", 100, absl::Seconds(90), kNow + absl::Seconds(i));
  EXPECT_DOUBLE_EQ(meter.Fastest("in")->seconds_per_unit, 0.01);
  EXPECT_EQ(meter.Fastest("in")->measured_at, kNow + absl::Seconds(14));
  meter.Record("in", 100, absl::Seconds(80), kNow);
  EXPECT_DOUBLE_EQ(meter.Fastest("in")->seconds_per_unit, 0.8);
}

TEST(RateMeterTest, KeysAreBoundedAndTheStalestGoes) {
  RateMeter meter;
  for (size_t i = 0; i <= RateMeter::kMaxKeys; ++i) {
    meter.Record(std::to_string(i), 1, absl::Seconds(1), kNow + absl::Seconds(i));
  }
  EXPECT_FALSE(meter.Get("0").has_value());
  EXPECT_TRUE(meter.Get("1").has_value());
}

}  // namespace
}  // namespace kvbridge::engine
