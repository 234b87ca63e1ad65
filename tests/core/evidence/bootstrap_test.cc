#include "core/evidence/bootstrap.h"

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace kvbridge::evidence {
namespace {

const std::vector<double> kValues = {3, 1, 4, 1, 5, 9, 2, 6};

TEST(BootstrapTest, TheSameSeedGivesTheSameInterval) {
  const Estimate once = Bootstrap(8, 7).Mean(kValues);
  const Estimate again = Bootstrap(8, 7).Mean(kValues);
  EXPECT_EQ(once.low, again.low);
  EXPECT_EQ(once.high, again.high);
  std::vector<double> squares = kValues;
  for (double& value : squares) value *= value * 1.01 + value;
  EXPECT_NE(Bootstrap(8, 7).Mean(squares).low, Bootstrap(8, 8).Mean(squares).low);
}

TEST(BootstrapTest, DrawsAreTheSameOnEveryMachine) {
  const Estimate mean = Bootstrap(8).Mean(kValues);
  EXPECT_DOUBLE_EQ(mean.value, 3.875);
  EXPECT_DOUBLE_EQ(mean.low, 2.25);
  EXPECT_DOUBLE_EQ(mean.high, 5.75);
}

TEST(BootstrapTest, AnIntervalIsAboutTwoStandardErrorsWide) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(10, 2);
  std::vector<double> values(400);
  for (double& value : values) value = normal(random);
  const Estimate mean = Bootstrap(400).Mean(values);
  EXPECT_NEAR(mean.high - mean.low, 2 * 1.96 * 2 / std::sqrt(400.0), 0.05);
  EXPECT_GT(mean.value, mean.low);
  EXPECT_LT(mean.value, mean.high);
}

TEST(BootstrapTest, OneSequenceHasNoWidth) {
  const Estimate mean = Bootstrap(1).Mean(std::vector<double>{2});
  EXPECT_EQ(mean.low, 2);
  EXPECT_EQ(mean.high, 2);
}

TEST(QuantileTest, InterpolatesBetweenOrderStatistics) {
  const std::vector<double> sorted = {0, 10, 20, 30};
  EXPECT_DOUBLE_EQ(Quantile(sorted, 0), 0);
  EXPECT_DOUBLE_EQ(Quantile(sorted, 0.5), 15);
  EXPECT_DOUBLE_EQ(Quantile(sorted, 0.95), 28.5);
  EXPECT_DOUBLE_EQ(Quantile(sorted, 1), 30);
  EXPECT_DOUBLE_EQ(Quantile(std::vector<double>{4}, 0.95), 4);
}

}  // namespace
}  // namespace kvbridge::evidence
