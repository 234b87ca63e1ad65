#include "core/fit/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/fit/reference_moments.h"

namespace kvbridge::fit {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

ProbeScores ProbeOf(const Moments& moments, const ProbeOptions& options) {
  const ColumnAudit audit = *AuditColumns(moments);
  return *Probe(moments, audit, options, {});
}

TEST(SelectionTest, TheSourceThatATargetWasMadeOfScoresBest) {
  const TestFamily family = SmallFamily();
  const ProbeScores scores =
      ProbeOf(ReferenceMoments(family, family.Draw(400, 1), family.Draw(200, 2)), {});
  for (const auto& component : scores) {
    for (size_t l = 0; l < 3; ++l) {
      EXPECT_EQ(RankSources(component[l]).front(), family.parents[l].front()) << l;
      EXPECT_GT(component[l][family.parents[l].front()], 0.5);
    }
  }
}

TEST(SelectionTest, FullAndHeadLocalMomentsGiveTheSameScores) {
  const TestFamily family = SmallFamily();
  const TestRows fit = family.Draw(100, 1);
  const TestRows held_out = family.Draw(50, 2);
  const ProbeScores full = ProbeOf(ReferenceMoments(family, fit, held_out), {});
  const ProbeScores local =
      ProbeOf(ReferenceMoments(family, fit, held_out, Layout::kHeadLocal), {});
  for (size_t c = 0; c < 2; ++c) {
    for (size_t l = 0; l < 3; ++l) {
      EXPECT_THAT(local[c][l], Pointwise(DoubleNear(1e-9), full[c][l]));
    }
  }
}

// The score by hand: one head on the same head, residual over variance.
TEST(SelectionTest, AScoreIsTheMeanOverHeadsOfR2) {
  const TestFamily family = SmallFamily();
  const Moments moments = ReferenceMoments(family, family.Draw(100, 1), {});
  const ColumnAudit audit = *AuditColumns(moments);
  const Lambda lambda = {.value = 1e-6, .convention = artifact::LambdaConvention::kRawGram};
  double expected = 0;
  const std::vector<Unit> units =
      *UnitsFor(moments, audit, 1, kv::Component::kValue, mapper::Support::kHeadLocal);
  for (const Unit& unit : units) {
    const std::vector<int32_t> source = {3};
    const System system = Gather(unit, source, RowSet::kFit);
    const Ridge ridge = *SolveRidge(system, lambda);
    double rss = 0, variance = 0;
    for (double v : ResidualSums(system, ridge.weight, ridge.bias)) rss += v;
    for (double v : system.target_ss) variance += v;
    expected += (1 - rss / variance) / 2;
  }
  const ProbeScores scores = ProbeOf(moments, {.lambda = lambda, .in_sample = true});
  EXPECT_NEAR(scores[1][1][3], expected, 1e-12);
}

TEST(SelectionTest, HeldOutScoresOfUnrelatedLayersAreNotAboveZero) {
  const TestFamily family = SmallFamily();
  const ProbeScores scores =
      ProbeOf(ReferenceMoments(family, family.Draw(40, 1), family.Draw(400, 2)), {});
  EXPECT_LT(scores[0][0][1], 0.0);
}

TEST(SelectionTest, TiesGoToTheLowerLayer) {
  EXPECT_THAT(RankSources({0.25, 0.5, 0.5, 0.125, 0.5}), ElementsAre(1, 2, 4, 0, 3));
}

TEST(SelectionTest, JointScoresAreMeansOfKeysAndValues) {
  const ProbeScores scores = {{{{0.5, 0.0}}, {{0.25, 0.5}}}};
  EXPECT_THAT(JointScores(scores), ElementsAre(ElementsAre(0.375, 0.25)));
}

}  // namespace
}  // namespace kvbridge::fit
