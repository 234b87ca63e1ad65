#include "client/cli/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvbridge::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TransferReport Applied(double seconds, double map) {
  return {.outcome = "applied",
          .bytes_in = 3000,
          .bytes_out = 1000,
          .stage_seconds = {{"map", map}},
          .seconds = seconds};
}

BenchReport Measured(std::vector<BenchRow> rows) {
  return {.subject = "pair",
          .backend = "cpu-amx",
          .artifact_digest = "abc",
          .plane = "region",
          .rows = std::move(rows)};
}

TEST(BenchReportTest, TimesAreOfWhatWasApplied) {
  const BenchRow row =
      Summarize(100, {Applied(0.2, 0.1),
                      Applied(0.4, 0.3),
                      Applied(0.3, 0.2),
                      {.outcome = "fallback_reprefill", .reason = "overload", .seconds = 9}});
  EXPECT_EQ(row.applied, 3);
  EXPECT_THAT(row.fallbacks, UnorderedElementsAre(Pair("overload", 1)));
  EXPECT_EQ(row.p50, 0.3);
  EXPECT_EQ(row.p99, 0.4);
  EXPECT_EQ(row.stages_p50.at("map"), 0.2);
  EXPECT_DOUBLE_EQ(row.bytes_per_second(), 4000 / 0.3);
  EXPECT_DOUBLE_EQ(row.tokens_per_second(), 100 / 0.3);
}

TEST(BenchReportTest, IsReadBackAsItWasWritten) {
  const BenchReport report = Measured({Summarize(100, {Applied(0.2, 0.1)})});
  const auto read = ParseBenchReport(ToJson(report, std::nullopt).dump(), "base").value();
  EXPECT_EQ(read.subject, "pair");
  EXPECT_EQ(read.backend, "cpu-amx");
  EXPECT_EQ(read.artifact_digest, "abc");
  EXPECT_EQ(read.plane, "region");
  ASSERT_EQ(read.rows.size(), 1);
  EXPECT_EQ(read.rows[0].tokens, 100);
  EXPECT_EQ(read.rows[0].applied, 1);
  EXPECT_EQ(read.rows[0].p50, 0.2);
  EXPECT_EQ(read.rows[0].p99, 0.2);
}

TEST(BenchReportTest, WhatIsWrongWithABaselineIsNamed) {
  base::Json good = ToJson(Measured({Summarize(100, {Applied(0.2, 0.1)})}), std::nullopt);
  const auto expect = [&good](const char* pointer, const base::Json& value, const char* message) {
    base::Json bad = good;
    bad[base::Json::json_pointer(pointer)] = value;
    const absl::Status status = ParseBenchReport(bad.dump(), "base").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << pointer;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect("/schema", "kvbridge.plan/v1", "base.schema: expected kvbridge.bench/v1");
  expect("/rows", 7, "base.rows");
  expect("/rows/0/tokens", 0, "base.rows[0].tokens");
  expect("/rows/0/p50_seconds", "fast", "base.rows[0].p50_seconds");
  expect("/rows/0/p99_seconds", 0.0, "base.rows[0].p50_seconds: expected more than 0");
  EXPECT_TRUE(absl::IsInvalidArgument(ParseBenchReport("{", "base").status()));
}

TEST(BenchComparisonTest, SlowerIsMoreThanTheToleranceAbove) {
  const BenchReport before = Measured({{.tokens = 10, .applied = 1, .p50 = 1, .p99 = 2},
                                       {.tokens = 20, .applied = 1, .p50 = 1, .p99 = 2},
                                       {.tokens = 30, .applied = 0},
                                       {.tokens = 40, .applied = 1, .p50 = 1, .p99 = 2}});
  const BenchReport now = Measured({{.tokens = 10, .applied = 1, .p50 = 1.05, .p99 = 4},
                                    {.tokens = 20, .applied = 1, .p50 = 1.15, .p99 = 2},
                                    {.tokens = 30, .applied = 1, .p50 = 9, .p99 = 9},
                                    {.tokens = 50, .applied = 1, .p50 = 9, .p99 = 9}});
  const BenchComparison comparison = Compare(now, before, "base", 0.1).value();
  ASSERT_EQ(comparison.ratios.size(), 2);
  EXPECT_FALSE(comparison.ratios[0].slower);
  EXPECT_EQ(comparison.ratios[0].p99, 2);
  EXPECT_TRUE(comparison.ratios[1].slower);
  EXPECT_TRUE(comparison.slower());
  EXPECT_FALSE(Compare(now, before, "base", 0.2)->slower());
  EXPECT_THAT(ToText(now, comparison, false), HasSubstr("1.15  slower"));

  const absl::Status nothing = Compare(Measured({now.rows[3]}), before, "base", 0.1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(nothing));
  EXPECT_THAT(std::string(nothing.message()), HasSubstr("--baseline: base"));
}

TEST(BenchComparisonTest, SaysWhatElseIsDifferent) {
  const std::vector<BenchRow> rows = {{.tokens = 10, .applied = 1, .p50 = 1, .p99 = 2}};
  BenchReport now = Measured(rows);
  now.backend = "cpu-avx2";
  now.plane = "inline";
  EXPECT_THAT(Compare(now, Measured(rows), "base", 0.1)->differences,
              ElementsAre("backend: cpu-amx, now cpu-avx2", "plane: region, now inline"));
}

}  // namespace
}  // namespace kvbridge::cli
