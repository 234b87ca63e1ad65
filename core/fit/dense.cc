#include "core/fit/dense.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <cblas.h>

// LAPACK is column-major: its upper triangle is our lower one.
extern "C" {
void dpotrf_(const char* uplo, const int* n, double* a, const int* lda, int* info);
void dpotri_(const char* uplo, const int* n, double* a, const int* lda, int* info);
void dpocon_(const char* uplo, const int* n, const double* a, const int* lda, const double* anorm,
             double* rcond, double* work, int* iwork, int* info);
void dpstrf_(const char* uplo, const int* n, double* a, const int* lda, int* piv, int* rank,
             const double* tol, double* work, int* info);
}

namespace kvbridge::fit {
namespace {

void SolveTriangle(const Matrix& factor, CBLAS_TRANSPOSE transpose, Matrix& b) {
  cblas_dtrsm(CblasRowMajor, CblasLeft, CblasLower, transpose, CblasNonUnit,
              static_cast<int>(b.rows), static_cast<int>(b.cols), 1.0, factor.data.data(),
              static_cast<int>(factor.cols), b.data.data(), static_cast<int>(b.cols));
}

}  // namespace

SingleThreadedBlas::SingleThreadedBlas() : threads_(openblas_get_num_threads()) {
  openblas_set_num_threads(1);
}
SingleThreadedBlas::~SingleThreadedBlas() { openblas_set_num_threads(threads_); }

bool Cholesky(Matrix& a) {
  const int n = static_cast<int>(a.rows);
  int info = 0;
  dpotrf_("U", &n, a.data.data(), &n, &info);
  // A NaN pivot passes some builds of dpotrf.
  return info == 0 && std::isfinite(a.row(n - 1)[n - 1]);
}

void SolveLower(const Matrix& factor, Matrix& b) { SolveTriangle(factor, CblasNoTrans, b); }
void SolveLowerTransposed(const Matrix& factor, Matrix& b) { SolveTriangle(factor, CblasTrans, b); }

Matrix MultiplySymmetric(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.cols);
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(a.rows),
              static_cast<int>(b.cols), static_cast<int>(a.cols), 1.0, a.data.data(),
              static_cast<int>(a.cols), b.data.data(), static_cast<int>(b.cols), 0.0,
              out.data.data(), static_cast<int>(out.cols));
  return out;
}

void AddTransposedProduct(const Matrix& a, int64_t column, int64_t begin, int64_t end,
                          const Matrix& b, Matrix& target) {
  if (begin == end) return;
  cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<int>(target.rows),
              static_cast<int>(target.cols), static_cast<int>(end - begin), 1.0,
              a.row(begin) + column, static_cast<int>(a.cols), b.row(begin),
              static_cast<int>(b.cols), 1.0, target.data.data(), static_cast<int>(target.cols));
}

double Dot(const Matrix& a, const Matrix& b) {
  return cblas_ddot(static_cast<int>(a.data.size()), a.data.data(), 1, b.data.data(), 1);
}

double OneNorm(const Matrix& a) {
  double norm = 0;
  for (int64_t i = 0; i < a.rows; ++i) {
    norm = std::max(norm, cblas_dasum(static_cast<int>(a.cols), a.row(i), 1));
  }
  return norm;
}

double ConditionEstimate(const Matrix& factor, double one_norm) {
  const int n = static_cast<int>(factor.rows);
  std::vector<double> work(static_cast<size_t>(3) * n);
  std::vector<int> iwork(static_cast<size_t>(n));
  double reciprocal = 0;
  int info = 0;
  dpocon_("U", &n, factor.data.data(), &n, &one_norm, &reciprocal, work.data(), iwork.data(),
          &info);
  return info == 0 && reciprocal > 0 ? 1 / reciprocal : std::numeric_limits<double>::infinity();
}

std::vector<double> InverseDiagonal(const Matrix& factor) {
  Matrix inverse = factor;
  const int n = static_cast<int>(factor.rows);
  int info = 0;
  dpotri_("U", &n, inverse.data.data(), &n, &info);
  std::vector<double> diagonal(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) diagonal[i] = inverse.row(i)[i];
  return diagonal;
}

std::vector<int64_t> DependentColumns(Matrix& correlation, double tolerance) {
  const int n = static_cast<int>(correlation.rows);
  std::vector<int> pivots(static_cast<size_t>(n));
  std::vector<double> work(static_cast<size_t>(2) * n);
  int rank = 0;
  int info = 0;
  dpstrf_("U", &n, correlation.data.data(), &n, pivots.data(), &rank, &tolerance, work.data(),
          &info);
  std::vector<int64_t> dependent(pivots.begin() + rank, pivots.end());
  for (int64_t& column : dependent) --column;  // LAPACK counts from 1
  std::sort(dependent.begin(), dependent.end());
  return dependent;
}

}  // namespace kvbridge::fit
