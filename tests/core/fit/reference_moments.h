// Moments of rows that a test made, by plain FP64 loops: what everything else is compared with.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/fit/dense.h"
#include "core/fit/moments.h"

namespace kvbridge::fit {

// Rows of keys and of values: [component] source [n, layers * row], target likewise.
struct TestRows {
  std::array<Matrix, 2> source;
  std::array<Matrix, 2> target;
  int64_t rows() const { return source[0].rows; }
};

// A linear family with noise: target layer l is a mix of the source layers in `parents[l]`, each
// head of the source head of the same number mostly. The same seed gives the same family, `draw`
// other rows of it.
struct TestFamily {
  model::ModelSpec source;
  model::ModelSpec target;
  std::vector<std::vector<int32_t>> parents;  // [target layers]
  double noise = 0.3;
  uint32_t seed = 1;

  TestRows Draw(int64_t rows, uint32_t draw) const;
};
TestFamily SmallFamily();  // 4 layers -> 3 layers, 2 heads x 4

// `held_out` may have no rows.
Moments ReferenceMoments(const TestFamily& family, const TestRows& fit, const TestRows& held_out,
                         Layout layout = Layout::kFull);

}  // namespace kvbridge::fit
