#include "core/fit/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/fit/reference_moments.h"

namespace kvbridge::fit {
namespace {

using kv::Component;
using mapper::Support;
using ::testing::ElementsAre;

constexpr Component kKey[] = {Component::kKey};
const std::vector<int32_t> kAll = {0, 1, 2, 3};

std::vector<Curve> Trace(const Moments& moments, int32_t layer, const TraceOptions& options,
                         std::span<const Component> components = kKey) {
  const ColumnAudit audit = *AuditColumns(moments);
  return *TraceCurves(moments, audit, layer, components, kAll, options);
}

TEST(CurveTest, GreedyOrderFindsTheParentsFirst) {
  const TestFamily family = SmallFamily();
  const Moments moments = ReferenceMoments(family, family.Draw(400, 1), family.Draw(200, 2));
  const auto curves = Trace(moments, 1, {});
  ASSERT_EQ(curves.front().points.size(), 4);
  EXPECT_THAT(curves.front().points[1].sources, ElementsAre(2, 1));
  // Two parents explain all but the noise; more layers bring nothing.
  EXPECT_GT(curves.front().points[1].judged.held_out, 0.98);
  EXPECT_LT(curves.front().points[0].judged.held_out, 0.9);
}

TEST(CurveTest, WithoutGreedTheOrderIsTheCandidates) {
  const TestFamily family = SmallFamily();
  const Moments moments = ReferenceMoments(family, family.Draw(100, 1), family.Draw(50, 2));
  const auto curves = Trace(moments, 1, {.max_sources = 3, .greedy = false});
  ASSERT_EQ(curves.front().points.size(), 3);
  EXPECT_THAT(curves.front().points.back().sources, ElementsAre(0, 1, 2));
}

TEST(CurveTest, OneOrderForBothComponentsWeighsThem) {
  TestFamily family = SmallFamily();
  const Moments moments = ReferenceMoments(family, family.Draw(200, 1), family.Draw(100, 2));
  const auto curves = Trace(moments, 2, {}, kv::kComponents);
  ASSERT_EQ(curves.size(), 2);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(curves[0].points[i].sources, curves[1].points[i].sources);
  }
  EXPECT_EQ(curves[1].component, Component::kValue);
}

TEST(CurveTest, FewRowsRaiseLambda) {
  const TestFamily family = SmallFamily();
  const TestRows held_out = family.Draw(300, 2);
  TestFamily noisy = family;
  noisy.noise = 20;
  const auto few = Trace(ReferenceMoments(noisy, noisy.Draw(30, 1), noisy.Draw(300, 2)), 0, {});
  const auto many = Trace(ReferenceMoments(family, family.Draw(2000, 1), held_out), 0, {});
  EXPECT_GT(few.front().points.back().lambda.value, many.front().points.back().lambda.value);
}

TEST(CurveTest, MoreColumnsThanRowsFitPerfectlyAndFailOnOthers) {
  TestFamily family = SmallFamily();
  family.noise = 10;
  const Moments moments = ReferenceMoments(family, family.Draw(30, 1), family.Draw(300, 2));
  const auto curves = Trace(moments, 0, {.lambda = Lambda{.value = 1e-9}});
  const Judgement last = curves.front().points.back().judged;
  EXPECT_GT(last.in_sample, 0.99);
  EXPECT_LT(last.held_out, 0.5);
  EXPECT_NEAR(last.error, 1 - last.held_out, 1e-12);
}

TEST(CurveTest, WithoutHeldOutRowsCrossValidationJudges) {
  TestFamily family = SmallFamily();
  family.noise = 10;
  const TestRows fit = family.Draw(80, 1);
  const auto options = TraceOptions{.criterion = Criterion::kGcv, .lambda = Lambda{.value = 1e-3}};
  const auto blind = Trace(ReferenceMoments(family, fit, {}), 1, options);
  const auto seen = Trace(ReferenceMoments(family, fit, family.Draw(4000, 2)), 1,
                          {.lambda = Lambda{.value = 1e-3}});
  const Judgement guess = blind.front().points.front().judged;
  EXPECT_TRUE(std::isnan(guess.held_out));
  EXPECT_NEAR(guess.error, seen.front().points.front().judged.error, 0.1);
}

TEST(CurveTest, HeadLocalMapsAreSmallerByTheNumberOfHeads) {
  const TestFamily family = SmallFamily();
  const Moments moments = ReferenceMoments(family, family.Draw(100, 1), {});
  EXPECT_EQ(ParameterCount(moments, Support::kFull, 2), 8 * (2 * 8 + 1));
  EXPECT_EQ(ParameterCount(moments, Support::kHeadLocal, 2), 8 * (2 * 4 + 1));
}

TEST(CurveTest, HeadLocalMomentsCannotAnswerFullHead) {
  const TestFamily family = SmallFamily();
  const Moments moments =
      ReferenceMoments(family, family.Draw(100, 1), family.Draw(50, 2), Layout::kHeadLocal);
  const ColumnAudit audit = *AuditColumns(moments);
  const absl::Status status = TraceCurves(moments, audit, 0, kKey, kAll, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("got layout head_local"));
}

TEST(CurveTest, StopsWhenAsked) {
  const TestFamily family = SmallFamily();
  const Moments moments = ReferenceMoments(family, family.Draw(100, 1), family.Draw(50, 2));
  const ColumnAudit audit = *AuditColumns(moments);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(TraceCurves(moments, audit, 0, kKey, kAll, {.stop = stop.get_token()}).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace kvbridge::fit
