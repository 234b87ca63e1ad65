// What a pair of models will take, from capture to serving, before anything is downloaded: sizes
// are exact, times come from rates that were measured or stated, and each number says which.
//
// Thread contract: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "core/model/model_spec.h"
#include "core/plan/transfer_plan.h"

namespace kvbridge::plan {

struct Quantity {
  std::string stage;  // "capture", "accumulate", "solve", "mapper", "serve"
  std::string name;
  std::optional<double> value;
  std::string unit;  // "bytes", "seconds", "rows", "passes", "FLOP", "tokens", "parameters"
  Provenance provenance = Provenance::kDerived;
  std::string how;  // one line: the formula, or whose rate
};

struct PairPlanInput {
  model::KvGeometry source;
  model::KvGeometry target;
  int64_t sequences = 500;
  int64_t length = 1024;  // tokens of each
  int64_t stride = 4;     // every stride-th token is a row
  int32_t k = 8;          // source layers per target layer
  bool head_local = false;
  // What the accumulator's own plan says (fit/accumulate_plan.h).
  double passes = 1;
  uint64_t accumulate_peak_bytes = 0;
  // Rates of this machine. None = that time is unmeasured.
  std::optional<double> fp32_flops;  // FLOP/s of the accumulator's products
  std::optional<double> fp64_flops;  // FLOP/s of Cholesky factorisations
  std::optional<double> map_flops;   // FLOP/s of the serving map
  // Stated by the caller. 0 = not stated.
  double capture_tokens_per_second = 0;  // both models reading
  double prefill_tokens_per_second = 0;  // the target's, where it serves
};

// INVALID_ARGUMENT names a field out of range; FAILED_PRECONDITION: head_local with unequal heads.
absl::StatusOr<std::vector<Quantity>> MakePairPlan(const PairPlanInput& input);

// Bytes of a moments file: both splits, FP64.
int64_t MomentsBytes(const PairPlanInput& input);

}  // namespace kvbridge::plan
