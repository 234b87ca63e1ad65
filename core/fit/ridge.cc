#include "core/fit/ridge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace kvbridge::fit {
namespace {

constexpr int kMaxEscalations = 8;
// Where lambda = 0 fails, escalation starts here, in units of the mean diagonal.
constexpr double kFirstEscalation = 1e-12;

double MeanDiagonal(const Matrix& gram) {
  double sum = 0;
  int64_t live = 0;
  for (int64_t i = 0; i < gram.rows; ++i) {
    sum += gram.row(i)[i];
    live += gram.row(i)[i] > 0;
  }
  return live == 0 ? 0 : sum / static_cast<double>(live);
}

bool Factor(const Matrix& gram, double raw_lambda, Ridge& ridge) {
  const int64_t p = gram.rows;
  ridge.scale.assign(static_cast<size_t>(p), 1.0);
  for (int64_t i = 0; i < p; ++i) {
    if (gram.row(i)[i] > 0) ridge.scale[i] = std::sqrt(gram.row(i)[i] + raw_lambda);
  }
  ridge.factor = Matrix(p, p);
  for (int64_t i = 0; i < p; ++i) {
    double* row = ridge.factor.row(i);
    const double* from = gram.row(i);
    for (int64_t j = 0; j < i; ++j) row[j] = from[j] / (ridge.scale[i] * ridge.scale[j]);
    row[i] = 1;
  }
  return Cholesky(ridge.factor);
}

void ScaleRows(const std::vector<double>& scale, Matrix& m) {
  for (int64_t i = 0; i < m.rows; ++i) {
    for (int64_t j = 0; j < m.cols; ++j) m.row(i)[j] /= scale[i];
  }
}

}  // namespace

double RawLambda(const System& system, Lambda lambda) {
  switch (lambda.convention) {
    case artifact::LambdaConvention::kRawGram:
      return lambda.value;
    case artifact::LambdaConvention::kGramOverRows:
      return lambda.value * system.weight;
    case artifact::LambdaConvention::kRelativeMeanDiagonal:
      return lambda.value * MeanDiagonal(system.gram);
  }
  return lambda.value;
}

absl::StatusOr<Ridge> SolveRidge(const System& system, Lambda lambda) {
  Ridge ridge;
  ridge.raw_lambda = RawLambda(system, lambda);
  while (!Factor(system.gram, ridge.raw_lambda, ridge)) {
    if (ridge.escalations == kMaxEscalations) {
      return absl::FailedPreconditionError(
          absl::StrCat("ridge of ", system.gram.rows, " features on ", system.rows,
                       " rows: expected a positive definite system, got a singular one even with "
                       "lambda ",
                       ridge.raw_lambda, " on the Gram's diagonal"));
    }
    ++ridge.escalations;
    ridge.raw_lambda =
        std::max(10 * ridge.raw_lambda, kFirstEscalation * MeanDiagonal(system.gram));
  }
  ridge.weight = system.cross;
  ScaleRows(ridge.scale, ridge.weight);
  SolveLower(ridge.factor, ridge.weight);
  SolveLowerTransposed(ridge.factor, ridge.weight);
  ScaleRows(ridge.scale, ridge.weight);
  ridge.bias = BiasOf(system, ridge.weight);
  return ridge;
}

std::vector<double> FittedResidualSums(const System& system, const Ridge& ridge) {
  std::vector<double> sums = system.target_ss;
  for (int64_t i = 0; i < ridge.weight.rows; ++i) {
    const double* w = ridge.weight.row(i);
    const double* cross = system.cross.row(i);
    for (int64_t j = 0; j < ridge.weight.cols; ++j) {
      sums[j] -= w[j] * (cross[j] + ridge.raw_lambda * w[j]);
    }
  }
  return sums;
}

Accuracy AccuracyOf(const System& system, const Ridge& ridge) {
  Matrix scaled = system.gram;
  for (int64_t i = 0; i < scaled.rows; ++i) {
    double* row = scaled.row(i);
    for (int64_t j = 0; j < scaled.cols; ++j) row[j] /= ridge.scale[i] * ridge.scale[j];
    row[i] = 1;
  }
  const Matrix product = MultiplySymmetric(system.gram, ridge.weight);
  double error = 0;
  for (size_t i = 0; i < product.data.size(); ++i) {
    const double e =
        product.data[i] + ridge.raw_lambda * ridge.weight.data[i] - system.cross.data[i];
    error += e * e;
  }
  const double size = Dot(system.cross, system.cross);
  return {.condition = ConditionEstimate(ridge.factor, OneNorm(scaled)),
          .residual = size > 0 ? std::sqrt(error / size) : 0};
}

double GeneralisedCrossValidation(const System& system, const Ridge& ridge, double rss) {
  // tr(G A^-1) = p - lambda tr(A^-1), over the columns that vary.
  const std::vector<double> inverse = InverseDiagonal(ridge.factor);
  double freedom = 1;
  for (int64_t i = 0; i < system.gram.rows; ++i) {
    if (system.gram.row(i)[i] <= 0) continue;
    freedom += 1 - ridge.raw_lambda * inverse[i] / (ridge.scale[i] * ridge.scale[i]);
  }
  const double n = static_cast<double>(system.rows);
  if (freedom >= n) return std::numeric_limits<double>::infinity();
  const double left = 1 - freedom / n;
  return rss / n / (left * left);
}

}  // namespace kvbridge::fit
