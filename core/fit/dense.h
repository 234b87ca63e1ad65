// Dense FP64 matrices and the few LAPACK calls a fit needs. Row-major everywhere.
//
// Thread contract: pure functions on their arguments; OpenBLAS may be called from several threads
// at once, each call then runs on its own thread only while a SingleThreadedBlas lives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvbridge::fit {

struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> data;  // [rows, cols]

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), data(static_cast<size_t>(r * c)) {}
  double* row(int64_t i) { return data.data() + i * cols; }
  const double* row(int64_t i) const { return data.data() + i * cols; }
};

// While it lives OpenBLAS uses the calling thread alone, so that results do not depend on the
// number of cores and a pool can solve many systems beside each other. Made by one thread at a
// time.
class SingleThreadedBlas {
 public:
  SingleThreadedBlas();
  ~SingleThreadedBlas();
  SingleThreadedBlas(const SingleThreadedBlas&) = delete;
  SingleThreadedBlas& operator=(const SingleThreadedBlas&) = delete;

 private:
  const int threads_;
};

// a = L L^T in place: the lower triangle becomes L, the upper stays. False where `a` is not
// positive definite (NaN included); `a` is then spoilt.
[[nodiscard]] bool Cholesky(Matrix& a);

// b := L^-1 b and b := L^-T b for the lower triangle L of `factor`.
void SolveLower(const Matrix& factor, Matrix& b);
void SolveLowerTransposed(const Matrix& factor, Matrix& b);

// a b, where both triangles of the symmetric `a` are filled.
Matrix MultiplySymmetric(const Matrix& a, const Matrix& b);

// target += rows [begin, end) of `a`, columns [column, column + target.rows), transposed, times the
// same rows of `b`.
void AddTransposedProduct(const Matrix& a, int64_t column, int64_t begin, int64_t end,
                          const Matrix& b, Matrix& target);

// sum_ij a_ij b_ij.
double Dot(const Matrix& a, const Matrix& b);

// The largest column sum of absolute values of a symmetric matrix.
double OneNorm(const Matrix& a);
// Estimated condition number in that norm of L L^T (dpocon); infinity where it is singular.
double ConditionEstimate(const Matrix& factor, double one_norm);
// The diagonal of (L L^T)^-1.
std::vector<double> InverseDiagonal(const Matrix& factor);

// Columns that are combinations of the others within `tolerance` of a unit diagonal, found by
// pivoted Cholesky: their indices, ascending. `correlation` is spoilt.
std::vector<int64_t> DependentColumns(Matrix& correlation, double tolerance);

}  // namespace kvbridge::fit
