#include "core/fit/rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include <cblas.h>

#include "core/fit/dense.h"

namespace kvbridge::fit {
namespace {

// The best of a few: other work only ever slows it down.
double BestRate(double flops, absl::FunctionRef<void()> body) {
  constexpr int kRuns = 4;
  double best = 0;
  for (int run = 0; run <= kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (run > 0) best = std::max(best, flops / took.count());  // the first one warms up
  }
  return best;
}

}  // namespace

Rates MeasureRates() {
  constexpr int n = 512;
  constexpr int rows = 2048;
  std::vector<float> x(size_t{rows} * n, 0.5f);
  std::vector<float> product(size_t{n} * n);
  Rates rates;
  rates.fp32_flops = BestRate(2.0 * n * n * rows, [&] {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, n, rows, 1, x.data(), n, x.data(), n, 0,
                product.data(), n);
  });
  constexpr int64_t m = 1024;
  Matrix start(m, m);
  for (int64_t i = 0; i < m; ++i) start.row(i)[i] = 2;
  rates.fp64_flops = BestRate(static_cast<double>(m * m * m) / 3, [&] {
    Matrix a = start;
    (void)Cholesky(a);
  });
  return rates;
}

}  // namespace kvbridge::fit
