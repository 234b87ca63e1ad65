#include "core/fit/ridge.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/fit/reference_moments.h"

namespace kvbridge::fit {
namespace {

using artifact::LambdaConvention;
using ::testing::DoubleNear;
using ::testing::Pointwise;

constexpr auto kRaw = LambdaConvention::kRawGram;

struct Fixture {
  explicit Fixture(TestRows fit_rows, TestRows held_out_rows = {})
      : rows(std::move(fit_rows)),
        held_out(std::move(held_out_rows)),
        moments(ReferenceMoments(SmallFamily(), rows, held_out)),
        audit(*AuditColumns(moments)) {}

  Unit FullUnit(int32_t layer) const {
    return UnitsFor(moments, audit, layer, kv::Component::kKey, mapper::Support::kFull)->front();
  }

  TestRows rows;
  TestRows held_out;
  Moments moments;
  ColumnAudit audit;
};

const std::vector<int32_t> kTwoLayers = {2, 0};

// The residual of W, b on rows, column by column, from the rows themselves.
std::vector<double> DirectResiduals(const TestRows& rows, int32_t target_layer,
                                    const std::vector<int32_t>& sources, const Ridge& ridge) {
  std::vector<double> sums(8, 0.0);
  for (int64_t t = 0; t < rows.rows(); ++t) {
    for (int64_t j = 0; j < 8; ++j) {
      double error = rows.target[0].row(t)[target_layer * 8 + j] - ridge.bias[j];
      for (size_t s = 0; s < sources.size(); ++s) {
        for (int64_t i = 0; i < 8; ++i) {
          error -= rows.source[0].row(t)[sources[s] * 8 + i] * ridge.weight.row(s * 8 + i)[j];
        }
      }
      sums[j] += error * error;
    }
  }
  return sums;
}

TEST(RidgeTest, SatisfiesTheNormalEquations) {
  const Fixture f(SmallFamily().Draw(200, 1));
  const System system = Gather(f.FullUnit(1), kTwoLayers, RowSet::kFit);
  const Ridge ridge = *SolveRidge(system, {.value = 3.0, .convention = kRaw});
  for (int64_t i = 0; i < 16; ++i) {
    for (int64_t j = 0; j < 8; ++j) {
      double left = 3.0 * ridge.weight.row(i)[j];
      for (int64_t k = 0; k < 16; ++k) left += system.gram.row(i)[k] * ridge.weight.row(k)[j];
      EXPECT_NEAR(left, system.cross.row(i)[j], 1e-8);
    }
  }
  const Accuracy accuracy = AccuracyOf(system, ridge);
  EXPECT_LT(accuracy.residual, 1e-12);
  EXPECT_GT(accuracy.condition, 1.0);
  EXPECT_LT(accuracy.condition, 1e3);
}

TEST(RidgeTest, RecoversANoiselessMapWithItsBias) {
  TestFamily family = SmallFamily();
  family.noise = 0;
  const TestRows rows = family.Draw(100, 1);
  const Fixture f(rows);
  const std::vector<int32_t> parents = {2, 1};
  const System system = Gather(f.FullUnit(1), parents, RowSet::kFit);
  const Ridge ridge = *SolveRidge(system, {.value = 0});
  EXPECT_THAT(DirectResiduals(rows, 1, parents, ridge),
              Pointwise(DoubleNear(1e-15), std::vector<double>(8, 0.0)));
}

TEST(RidgeTest, ConventionsOfLambdaDifferByRowsAndDiagonal) {
  const Fixture f(SmallFamily().Draw(50, 1));
  const System system = Gather(f.FullUnit(0), kTwoLayers, RowSet::kFit);
  double trace = 0;
  for (int64_t i = 0; i < 16; ++i) trace += system.gram.row(i)[i];
  EXPECT_EQ(RawLambda(system, {.value = 2, .convention = kRaw}), 2);
  EXPECT_EQ(RawLambda(system, {.value = 2, .convention = LambdaConvention::kGramOverRows}), 100);
  EXPECT_NEAR(RawLambda(system, {.value = 2}), 2 * trace / 16, 1e-9);
}

TEST(RidgeTest, ResidualsFromMomentsAreThoseOfTheRows) {
  const TestRows fit = SmallFamily().Draw(60, 1);
  TestRows other = SmallFamily().Draw(40, 2);
  for (double& value : other.source[0].data) value += 1.5;  // means that differ from the fit's
  const Fixture f(fit, other);
  const Unit unit = f.FullUnit(2);
  const Ridge ridge = *SolveRidge(Gather(unit, kTwoLayers, RowSet::kFit), {.value = 1e-3});
  EXPECT_THAT(ResidualSums(Gather(unit, kTwoLayers, RowSet::kHeldOut), ridge.weight, ridge.bias),
              Pointwise(DoubleNear(1e-7), DirectResiduals(other, 2, kTwoLayers, ridge)));
  EXPECT_THAT(ResidualSums(Gather(unit, kTwoLayers, RowSet::kFit), ridge.weight, ridge.bias),
              Pointwise(DoubleNear(1e-7), DirectResiduals(fit, 2, kTwoLayers, ridge)));
}

TEST(RidgeTest, BothSplitsMergeIntoTheMomentsOfAllRows) {
  const TestRows all = SmallFamily().Draw(90, 1);
  const auto cut = [&](int64_t begin, int64_t end) {
    TestRows part;
    for (auto [from, to] : {std::pair(&all.source, &part.source), {&all.target, &part.target}}) {
      for (size_t c = 0; c < 2; ++c) {
        const Matrix& m = (*from)[c];
        (*to)[c] = Matrix(end - begin, m.cols);
        std::copy(m.row(begin), m.row(end - 1) + m.cols, (*to)[c].data.begin());
      }
    }
    return part;
  };
  const Fixture whole(all);
  const Fixture split(cut(0, 70), cut(70, 90));
  const System expected = Gather(whole.FullUnit(1), kTwoLayers, RowSet::kFit);
  const System merged = Gather(split.FullUnit(1), kTwoLayers, RowSet::kBoth);
  EXPECT_EQ(merged.rows, 90);
  EXPECT_THAT(merged.gram.data, Pointwise(DoubleNear(1e-9), expected.gram.data));
  EXPECT_THAT(merged.cross.data, Pointwise(DoubleNear(1e-9), expected.cross.data));
  EXPECT_THAT(merged.mean_x, Pointwise(DoubleNear(1e-12), expected.mean_x));
  EXPECT_THAT(merged.target_ss, Pointwise(DoubleNear(1e-9), expected.target_ss));
}

TEST(RidgeTest, LambdaGrowsUntilASingularSystemCanBeFactored) {
  TestRows rows = SmallFamily().Draw(50, 1);
  for (int64_t t = 0; t < 50; ++t) rows.source[0].row(t)[1] = rows.source[0].row(t)[0];
  const Fixture f(rows);
  const System system = Gather(f.FullUnit(0), kTwoLayers, RowSet::kFit);
  const Ridge ridge = *SolveRidge(system, {.value = 0});
  EXPECT_GT(ridge.escalations, 0);
  EXPECT_GT(ridge.raw_lambda, 0);
  for (double value : ridge.weight.data) EXPECT_TRUE(std::isfinite(value));
}

TEST(RidgeTest, MoreColumnsThanRowsIsSolvedByItsRidge) {
  const Fixture f(SmallFamily().Draw(10, 1));
  const System system = Gather(f.FullUnit(0), kTwoLayers, RowSet::kFit);
  const Ridge ridge = *SolveRidge(system, {.value = 1e-2});
  EXPECT_EQ(ridge.escalations, 0);
  EXPECT_LT(AccuracyOf(system, ridge).residual, 1e-10);
}

TEST(RidgeTest, NegativeDiagonalsAreRefusedAfterTheLastEscalation) {
  const Fixture f(SmallFamily().Draw(50, 1));
  System system = Gather(f.FullUnit(0), kTwoLayers, RowSet::kFit);
  system.gram.row(1)[0] = system.gram.row(0)[1] = 1e12;
  EXPECT_EQ(SolveRidge(system, {.value = 1e-9}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Leaving one row out, exactly, is what generalised cross-validation approximates.
TEST(RidgeTest, CrossValidationIsCloseToLeavingRowsOut) {
  const TestRows rows = SmallFamily().Draw(60, 1);
  const Fixture f(rows);
  const Unit unit = f.FullUnit(0);
  const Lambda lambda = {.value = 1e-2};
  const System all = Gather(unit, kTwoLayers, RowSet::kFit);
  const Ridge ridge = *SolveRidge(all, lambda);
  double rss = 0;
  for (double sum : ResidualSums(all, ridge.weight, ridge.bias)) rss += sum;
  double left_out = 0;
  for (int64_t t = 0; t < 60; ++t) {
    TestRows rest = SmallFamily().Draw(59, 9);
    TestRows one = SmallFamily().Draw(1, 9);
    for (auto [from, to, single] : {std::tuple(&rows.source, &rest.source, &one.source),
                                    {&rows.target, &rest.target, &one.target}}) {
      for (size_t c = 0; c < 2; ++c) {
        const Matrix& m = (*from)[c];
        std::copy(m.row(0), m.row(0) + t * m.cols, (*to)[c].data.begin());
        std::copy(m.row(0) + (t + 1) * m.cols, m.row(0) + 60 * m.cols,
                  (*to)[c].data.begin() + t * m.cols);
        std::copy(m.row(t), m.row(t) + m.cols, (*single)[c].data.begin());
      }
    }
    const Fixture without(rest);
    const Ridge part = *SolveRidge(Gather(without.FullUnit(0), kTwoLayers, RowSet::kFit), lambda);
    for (double sum : DirectResiduals(one, 0, kTwoLayers, part)) left_out += sum;
  }
  EXPECT_NEAR(GeneralisedCrossValidation(all, ridge, rss) / (left_out / 60), 1.0, 0.1);
}

}  // namespace
}  // namespace kvbridge::fit
