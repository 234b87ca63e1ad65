#include "core/plan/fit_plan.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::plan {
namespace {

absl::StatusOr<FitPlan> Plan(const nlohmann::json& input) {
  absl::StatusOr<FitPlanInput> parsed = ParseFitPlanInput(input.dump());
  if (!parsed.ok()) return parsed.status();
  return MakeFitPlan(*parsed);
}

// How each of the prototype's errors is named here.
const std::map<std::string, std::string> kErrors = {
    {"explicit fit stride differs",
     "INVALID_ARGUMENT: fit.token_stride: expected "
     "calibration.stride = 5, got 4"},
    {"unmatched heads, required",
     "FAILED_PRECONDITION: target: expected 4 heads x 16 as the source "
     "(require_matched_kv), got 2 x 32"},
    {"tokenizers differ",
     "FAILED_PRECONDITION: target.tokenizer_hash: expected the source's; "
     "token ids must mean the same"},
    {"sliding window target",
     "FAILED_PRECONDITION: target.attention_kind: expected full attention in every layer"},
    {"top_k zero", "INVALID_ARGUMENT: fit.top_k: expected 1 to 2147483647, got 0"},
    {"negative alpha", "INVALID_ARGUMENT: fit.ridge_alpha: expected 0 or more, got -1"},
    {"unknown fit key", "INVALID_ARGUMENT: fit.topk: "},
    {"missing calibration tokens", "INVALID_ARGUMENT: calibration.tokens: "},
    {"zero layers", "INVALID_ARGUMENT: source.num_layers: "},
    {"stride zero", "INVALID_ARGUMENT: calibration.stride: "},
    // By design, where the prototype answers:
    // fewer than one sequence or token gives a plan of -231 or 0 observations (faults.md P12);
    {"negative sequences", "INVALID_ARGUMENT: calibration.sequences: "},
    {"zero tokens", "INVALID_ARGUMENT: calibration.tokens: "},
    // and 7.9 sequences of "33" tokens are rounded and read in silence.
    {"float sequences", "INVALID_ARGUMENT: calibration.sequences: "},
};

TEST(FitPlanTest, AgreesWithThePrototypeCaseByCase) {
  const auto cases =
      nlohmann::json::parse(test::ReadTestFile("tests/data/golden/planner/cases.json"));
  size_t errors = 0;
  for (const auto& c : cases) {
    const std::string name = c["input"]["name"];
    const auto plan = Plan(c["input"]);
    if (const auto error = kErrors.find(name); error != kErrors.end()) {
      EXPECT_THAT(plan.status().ToString(), testing::StartsWith(error->second)) << name;
      ++errors;
      continue;
    }
    ASSERT_TRUE(plan.ok()) << name << ": " << plan.status();
    ASSERT_TRUE(c.contains("output")) << name;
    const auto& out = c["output"];
    EXPECT_EQ(plan->name, name);
    EXPECT_EQ(plan->observations, out["observations"].get<int64_t>()) << name;
    EXPECT_EQ(plan->mapper_parameters, out["mapper_parameters"].get<int64_t>()) << name;
    EXPECT_EQ(plan->calibration_data_passes, out["calibration_data_passes"].get<int64_t>()) << name;
    const std::pair<const char*, double> exact[] = {
        {"mapper_gib", plan->mapper_gib},
        {"fit_block_working_set_gib", plan->fit_block_working_set_gib},
        {"selection_block_working_set_gib", plan->selection_block_working_set_gib},
        {"calibration_cache_pair_gib", plan->calibration_cache_pair_gib},
        {"estimated_mapper_load_ms_pcie25", plan->mapper_load_ms_pcie25},
        {"estimated_mapper_load_ms_pcie50", plan->mapper_load_ms_pcie50}};
    for (const auto& [field, value] : exact) {
      EXPECT_EQ(value, out[field].get<double>()) << name << " " << field;
    }
  }
  EXPECT_EQ(errors, kErrors.size());
}

TEST(FitPlanTest, SizesBeyondSixtyFourBitsAreRefused) {
  FitPlanInput in;
  in.source.layers = in.target.layers = 4096;
  in.source.kv_heads = in.target.kv_heads = 4096;
  in.source.head_dim = in.target.head_dim = 4096;
  in.top_k = 4096;
  in.sequences = in.tokens = 1;
  EXPECT_EQ(MakeFitPlan(in).status().ToString(), "INVALID_ARGUMENT: target: too large to plan");
  in.sequences = in.tokens = int64_t{1} << 40;
  EXPECT_EQ(MakeFitPlan(in).status().ToString(),
            "INVALID_ARGUMENT: calibration.sequences: too large to plan");
}

}  // namespace
}  // namespace kvbridge::plan
