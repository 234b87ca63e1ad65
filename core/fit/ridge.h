// Ridge regression from second moments: (G + lambda I) W = C in FP64.
//
// The system is scaled to a unit diagonal before it is factored, which does not change what is
// solved: D^-1 (G + lambda I) D^-1 = L L^T, D W = L^-T L^-1 D^-1 C, with D = sqrt(diag(G) +
// lambda).
//
// Thread contract: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "core/artifact/manifest.h"
#include "core/fit/dense.h"
#include "core/fit/system.h"

namespace kvbridge::fit {

struct Lambda {
  double value = 0;
  artifact::LambdaConvention convention = artifact::LambdaConvention::kRelativeMeanDiagonal;
};

// What is added to the diagonal of `system.gram`. The mean is over columns that vary.
double RawLambda(const System& system, Lambda lambda);

struct Ridge {
  Matrix weight;              // [p, q]; dead columns have zero rows
  std::vector<double> bias;   // [q]: mean_y - mean_x W
  double raw_lambda = 0;      // what the solve succeeded with
  int32_t escalations = 0;    // how often lambda grew tenfold
  Matrix factor;              // L
  std::vector<double> scale;  // the diagonal of D; 1 for dead columns
};

// FAILED_PRECONDITION where the system stays singular after the last escalation.
absl::StatusOr<Ridge> SolveRidge(const System& system, Lambda lambda);

// ResidualSums on the rows that were fitted on, where G W = C - lambda W spares the product.
std::vector<double> FittedResidualSums(const System& system, const Ridge& ridge);

// How far a solution can be trusted.
struct Accuracy {
  double condition = 0;  // estimated, of the scaled system
  double residual = 0;   // |(G + lambda I) W - C| / |C|, Frobenius; 0 where C = 0
};
Accuracy AccuracyOf(const System& system, const Ridge& ridge);

// Mean squared residual per row that rows not seen would have, by generalised cross-validation
// (Golub, Heath, Wahba 1979): RSS / n / (1 - df / n)^2 with df = 1 + tr(G (G + lambda I)^-1).
// Infinity where df reaches n. `rss` is the residual sum on the rows of `system`.
double GeneralisedCrossValidation(const System& system, const Ridge& ridge, double rss);

}  // namespace kvbridge::fit
