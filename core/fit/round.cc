#include "core/fit/round.h"

#include <algorithm>

#include "core/tensor/convert.h"

namespace kvbridge::fit {
namespace {

// Rows that are rounded between two matrix products.
constexpr int64_t kBlock = 64;

double ToBf16(double value) {
  return tensor::Bf16ToF32(tensor::F32ToBf16(static_cast<float>(value)));
}

}  // namespace

Matrix RoundPlain(const Matrix& weight) {
  Matrix rounded = weight;
  for (double& value : rounded.data) value = ToBf16(value);
  return rounded;
}

Matrix RoundWithFeedback(const Ridge& ridge) {
  const int64_t p = ridge.weight.rows;
  const int64_t q = ridge.weight.cols;
  const Matrix& l = ridge.factor;  // R = L^T in the scaled system
  Matrix rounded(p, q);
  Matrix error(p, q);  // scaled: D (W - Q)
  for (int64_t end = p; end > 0; end = std::max<int64_t>(end - kBlock, 0)) {
    const int64_t begin = std::max<int64_t>(end - kBlock, 0);
    Matrix carried(end - begin, q);
    AddTransposedProduct(l, begin, end, p, error, carried);
    for (int64_t i = end - 1; i >= begin; --i) {
      double* carry = carried.row(i - begin);
      for (int64_t j = i + 1; j < end; ++j) {
        const double factor = l.row(j)[i];
        const double* e = error.row(j);
        for (int64_t c = 0; c < q; ++c) carry[c] += factor * e[c];
      }
      const double scale = ridge.scale[i];
      for (int64_t c = 0; c < q; ++c) {
        const double weight = ridge.weight.row(i)[c];
        rounded.row(i)[c] = ToBf16(weight + carry[c] / (l.row(i)[i] * scale));
        error.row(i)[c] = scale * (weight - rounded.row(i)[c]);
      }
    }
  }
  return rounded;
}

}  // namespace kvbridge::fit
