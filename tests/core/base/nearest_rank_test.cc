#include "core/base/nearest_rank.h"

#include <gtest/gtest.h>

namespace kvbridge::base {
namespace {

TEST(NearestRankTest, IsTheSmallestThatTheShareDoesNotExceed) {
  const std::vector<double> hundred = [] {
    std::vector<double> values;
    for (int i = 100; i > 0; --i) values.push_back(i);
    return values;
  }();
  EXPECT_EQ(NearestRank(hundred, 0.5), 50);
  EXPECT_EQ(NearestRank(hundred, 0.99), 99);
  EXPECT_EQ(NearestRank({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(NearestRank({3, 1, 2}, 0.99), 3);
  EXPECT_EQ(NearestRank({7}, 0), 7);
  EXPECT_EQ(NearestRank({}, 0.5), std::nullopt);
}

}  // namespace
}  // namespace kvbridge::base
