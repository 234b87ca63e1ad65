#include "core/fit/rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include <cblas.h>

#include "core/base/status_macros.h"
#include "core/base/worker_pool.h"
#include "core/fit/accumulate_plan.h"
#include "core/fit/dense.h"
#include "core/fit/split_columns.h"

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

// Tiles of the usual size.
constexpr int kColumns = 512;
constexpr double kTileFlops = 2.0 * kColumns * kColumns * kBlockRows;

double BlasRate() {
  const std::vector<float> x(size_t{kBlockRows} * kColumns, 0.5f);
  std::vector<float> product(size_t{kColumns} * kColumns);
  return BestRate(kTileFlops, [&] {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, kColumns, kColumns, kBlockRows, 1,
                x.data(), kColumns, x.data(), kColumns, 0, product.data(), kColumns);
  });
}

// A tile on each core.
absl::StatusOr<double> AmxRate() {
  KVB_ASSIGN_OR_RETURN(const auto pool, base::WorkerPool::Create({}));
  const int64_t widths[] = {kColumns, kColumns};
  KVB_ASSIGN_OR_RETURN(const auto split, SplitColumns::Create(widths, kBlockRows));
  const std::vector<float> rows(size_t{kBlockRows} * 2 * kColumns, 0.5f);
  for (int64_t panel = 0; panel < split->panels(); ++panel) {
    split->Pack(panel, rows.data(), 2 * kColumns, kBlockRows);
  }
  const auto cores = static_cast<size_t>(pool->threads());
  std::vector<SplitColumns::Scratch> scratch(cores);
  for (auto& each : scratch) {
    KVB_ASSIGN_OR_RETURN(each, split->NewScratch());
  }
  std::vector<float> products(cores * kColumns * kColumns);
  return BestRate(kTileFlops * static_cast<double>(cores), [&] {
    pool->ParallelFor(pool->threads(), [&](int64_t i) {
      split->Multiply(0, 1, kBlockRows, scratch[i], products.data() + i * kColumns * kColumns);
    });
  });
}

}  // namespace

absl::StatusOr<Rates> MeasureRates() {
  Rates rates;
  KVB_ASSIGN_OR_RETURN(rates.fp32_flops, SplitColumns::Available() ? AmxRate() : BlasRate());
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
