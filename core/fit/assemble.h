// Solved layers become a mapper: the final regression, its rounding, and the tensors.
//
// Thread contract: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/curve.h"
#include "core/fit/ridge.h"
#include "core/mapper/mapper.h"
#include "core/tensor/dtype.h"

namespace kvbridge::fit {

// What rounding to BF16 added to residual / variance.
struct RoundingCost {
  double plain = 0;
  double feedback = 0;
  bool feedback_used = false;
};

// K or V of one target layer, solved.
struct SolvedLayer {
  CurvePoint point;
  std::vector<std::byte> weight;  // [target heads, features, target head_dim] in the dtype
  std::vector<std::byte> bias;    // [target heads, target head_dim]
  // Of the fit on the fitted rows alone, one number per target head; empty where nothing was held
  // out.
  std::vector<double> head_in_sample;
  std::vector<double> head_held_out;
  Accuracy accuracy;  // the worst over units
  int32_t escalations = 0;
  std::optional<RoundingCost> rounding;  // BF16 only
};

struct FinalOptions {
  bool refit = true;                           // on fitted and held-out rows together
  tensor::DType dtype = tensor::DType::kBf16;  // or kF32
};

// Solves a chosen point, whose sources of the component itself come first. Its R2 are measured
// anew, so that points that were never traced have them. `units` are UnitsFor of the point's
// support.
absl::StatusOr<SolvedLayer> SolveLayer(const std::vector<Unit>& units,
                                       const model::KvGeometry& target, CurvePoint point,
                                       const FinalOptions& options);

// Takes the layers' weights. [target layers] each.
mapper::Mapper AssembleMapper(const Moments& moments, std::vector<SolvedLayer>& keys,
                              std::vector<SolvedLayer>& values, mapper::KeyNorm key_norm,
                              tensor::DType dtype);

}  // namespace kvbridge::fit
