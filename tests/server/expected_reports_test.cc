#include "server/expected_reports.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

TEST(ExpectedReportsTest, ATransferIsReportedOnceAndByItsOwnRoute) {
  ExpectedReports reports;
  reports.Expect("a", "pair");
  EXPECT_FALSE(reports.Take("a", "other"));
  EXPECT_FALSE(reports.Take("b", "pair"));
  EXPECT_TRUE(reports.Take("a", "pair"));
  EXPECT_FALSE(reports.Take("a", "pair"));
}

TEST(ExpectedReportsTest, ARequestThatIsTriedAgainMayBeReportedAgain) {
  ExpectedReports reports;
  reports.Expect("a", "pair");
  EXPECT_TRUE(reports.Take("a", "pair"));
  reports.Expect("a", "pair");
  EXPECT_TRUE(reports.Take("a", "pair"));
}

TEST(ExpectedReportsTest, WhoIsForgottenIsToldUnlessItHadReported) {
  ExpectedReports reports;
  reports.Expect("silent", "a");
  reports.Expect("told", "b");
  EXPECT_TRUE(reports.Take("told", "b"));
  std::vector<std::string> forgotten;
  for (size_t i = 0; i < ExpectedReports::kCapacity; ++i) {
    const auto pair = reports.Expect(std::to_string(i), "c");
    if (pair.has_value()) forgotten.push_back(*pair);
  }
  EXPECT_EQ(forgotten, std::vector<std::string>{"a"});
}

TEST(ExpectedReportsTest, TheOldestIsForgottenFirst) {
  ExpectedReports reports;
  for (size_t i = 0; i <= ExpectedReports::kCapacity; ++i)
    reports.Expect(std::to_string(i), "pair");
  EXPECT_FALSE(reports.Take("0", "pair"));
  EXPECT_TRUE(reports.Take("1", "pair"));
  EXPECT_TRUE(reports.Take(std::to_string(ExpectedReports::kCapacity), "pair"));
}

}  // namespace
}  // namespace kvbridge::server
