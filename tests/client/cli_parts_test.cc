#include <gtest/gtest.h>

#include "client/cli/exit_code.h"
#include "client/cli/suggest.h"
#include "client/cli/table.h"

namespace kvbridge::cli {
namespace {

TEST(NearestWordTest, FindsSwapsDropsAndExtras) {
  const std::vector<std::string> known = {"transfer", "inspect", "plan", "health"};
  EXPECT_EQ(NearestWord("trasnfer", known), "transfer");
  EXPECT_EQ(NearestWord("inspct", known), "inspect");
  EXPECT_EQ(NearestWord("plann", known), "plan");
  EXPECT_EQ(NearestWord("fit", known), "");
  EXPECT_EQ(NearestWord("", known), "");
}

TEST(TableTest, NumbersStandToTheRightAndNothingTrails) {
  Table table({"NAME", "COUNT", "NOTE"});
  table.AddRow({"a", "7", "-"});
  table.AddRow({"größer", "1234567", "-"});
  table.AddRow({"b", "-", "-"});
  EXPECT_EQ(table.Render(false),
            "NAME      COUNT  NOTE\n"
            "a             7  -\n"
            "größer  1234567  -\n"
            "b             -  -\n");
  EXPECT_EQ(Table({"A", "B"}).Render(true), "\x1b[1mA  B\x1b[0m\n");
}

TEST(TableTest, FieldsWithoutAValueAreLeftOut) {
  EXPECT_EQ(RenderFields({{"a", "1"}, {"longer", ""}, {"bcd", "2"}}), "a    1\nbcd  2\n");
}

TEST(ExitCodeTest, EveryErrorHasItsNumber) {
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeFor(absl::DataLossError("")), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeFor(absl::UnauthenticatedError("")), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeFor(absl::UnimplementedError("")), ExitCode::kIncompatible);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), ExitCode::kUnreachable);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("")), ExitCode::kResources);
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("")), ExitCode::kInterrupted);
  EXPECT_EQ(static_cast<int>(ExitCode::kInterrupted), 130);
}

TEST(ExitCodeTest, FallbacksByPolicyAreAnswers) {
  const auto code = [](const char* outcome, const char* reason, bool fail) {
    return ExitCodeForFallback(outcome, reason, fail);
  };
  EXPECT_EQ(code("fallback_reprefill", "latency_budget", false), ExitCode::kOk);
  EXPECT_EQ(code("fallback_reprefill", "latency_budget", true), ExitCode::kGateFailed);
  EXPECT_EQ(code("unsupported", "app_gate", false), ExitCode::kIncompatible);
  EXPECT_EQ(code("fallback_reprefill", "unreachable", false), ExitCode::kUnreachable);
  EXPECT_EQ(code("fallback_reprefill", "token_limit", false), ExitCode::kResources);
  EXPECT_EQ(code("fallback_reprefill", "artifact_integrity", false), ExitCode::kBadInput);
}

}  // namespace
}  // namespace kvbridge::cli
