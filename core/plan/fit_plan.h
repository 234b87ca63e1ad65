// What fitting a mapper will take, before any model is downloaded.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/model/model_spec.h"

namespace kvbridge::plan {

// One experiment: a pair of models, how the map is fitted, what it is fitted on.
struct FitPlanInput {
  std::string name;
  model::KvGeometry source;
  model::KvGeometry target;
  std::string source_tokenizer;  // compared for equality only
  std::string target_tokenizer;
  int32_t top_k = 4;  // source layers per target layer; more than there are means all
  double ridge_alpha = 0.01;
  bool require_matched_kv = true;  // refuse differing head counts and dimensions
  int32_t accumulator_bytes = 8;   // 8 = float64, 4 = float32
  int32_t target_layer_block_size = 1;
  int32_t selection_target_layer_block_size = 1;
  int64_t sequences = 0;
  int64_t tokens = 0;  // per sequence
  int64_t stride = 1;  // every stride-th token is an observation
  int32_t cache_dtype_bytes = 2;
  int32_t artifact_dtype_bytes = 4;
};

struct FitPlan {
  std::string name;
  int64_t observations = 0;  // rows of the regression
  int64_t mapper_parameters = 0;
  double mapper_gib = 0;
  double fit_block_working_set_gib = 0;        // second moments of one block of target layers
  double selection_block_working_set_gib = 0;  // the same of the layer selection's probes
  double calibration_cache_pair_gib = 0;       // both caches of one sequence
  int64_t calibration_data_passes = 0;
  double mapper_load_ms_pcie25 = 0;  // at 25 GB/s
  double mapper_load_ms_pcie50 = 0;  // at 50 GB/s
};

// The experiment files of the Python KVBridge: {"name", "source", "target", "fit", "calibration"}.
// INVALID_ARGUMENT names the member, what was expected and what came; unknown members are refused.
absl::StatusOr<FitPlanInput> ParseFitPlanInput(absl::string_view json);

// INVALID_ARGUMENT for a number out of range, FAILED_PRECONDITION for a pair that cannot be fitted.
absl::StatusOr<FitPlan> MakeFitPlan(const FitPlanInput& input);

}  // namespace kvbridge::plan
