#include "core/fit/round.h"

#include <random>

#include <gtest/gtest.h>

#include "core/tensor/convert.h"

namespace kvbridge::fit {
namespace {

// A system whose columns are strongly correlated, where feedback pays most.
System Correlated(int64_t p, int64_t q, double shared, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Matrix rows(4 * p, p);
  for (int64_t t = 0; t < rows.rows; ++t) {
    const double common = shared * normal(random);
    for (int64_t i = 0; i < p; ++i) rows.row(t)[i] = (1 + i % 7) * (normal(random) + common);
  }
  System system{.rows = rows.rows, .weight = static_cast<double>(rows.rows)};
  system.gram = Matrix(p, p);
  AddTransposedProduct(rows, 0, 0, rows.rows, rows, system.gram);
  system.cross = Matrix(p, q);
  for (double& value : system.cross.data) value = 100 * normal(random);
  system.mean_x.assign(static_cast<size_t>(p), 0.0);
  system.mean_y.assign(static_cast<size_t>(q), 0.0);
  system.target_ss.assign(static_cast<size_t>(q), 0.0);
  return system;
}

// What rounding adds to the ridge's objective: tr((W - Q)^T (G + lambda I) (W - Q)).
double Cost(const System& system, const Ridge& ridge, const Matrix& rounded) {
  Matrix error = ridge.weight;
  for (size_t i = 0; i < error.data.size(); ++i) error.data[i] -= rounded.data[i];
  return Dot(error, MultiplySymmetric(system.gram, error)) + ridge.raw_lambda * Dot(error, error);
}

bool AllBf16(const Matrix& m) {
  for (double value : m.data) {
    if (tensor::Bf16ToF32(tensor::F32ToBf16(static_cast<float>(value))) != value) return false;
  }
  return true;
}

TEST(RoundTest, FeedbackCostsAFractionOfPlainRoundingWhereColumnsAreCorrelated) {
  const System system = Correlated(150, 20, 3.0, 1);  // three blocks, the last not full
  const Ridge ridge = *SolveRidge(system, {.value = 1e-4});
  const Matrix plain = RoundPlain(ridge.weight);
  const Matrix fed = RoundWithFeedback(ridge);
  EXPECT_TRUE(AllBf16(plain));
  EXPECT_TRUE(AllBf16(fed));
  EXPECT_LT(Cost(system, ridge, fed), 0.5 * Cost(system, ridge, plain));
}

TEST(RoundTest, WithoutCorrelationFeedbackIsPlainRounding) {
  System system = Correlated(70, 5, 0.0, 2);
  for (int64_t i = 0; i < 70; ++i) {
    for (int64_t j = 0; j < 70; ++j) {
      if (i != j) system.gram.row(i)[j] = 0;
    }
  }
  const Ridge ridge = *SolveRidge(system, {.value = 1e-4});
  EXPECT_EQ(RoundWithFeedback(ridge).data, RoundPlain(ridge.weight).data);
}

TEST(RoundTest, TiesGoToEven) {
  Matrix weight(1, 3);
  weight.data = {1.00390625, 1.01171875, -1.00390625};  // halfway between BF16 neighbours
  EXPECT_EQ(RoundPlain(weight).data, (std::vector<double>{1.0, 1.015625, -1.0}));
}

}  // namespace
}  // namespace kvbridge::fit
