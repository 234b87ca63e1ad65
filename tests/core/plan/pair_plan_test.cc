#include "core/plan/pair_plan.h"

#include <map>

#include <gtest/gtest.h>

namespace kvbridge::plan {
namespace {

// Qwen3 14B -> 32B: 40 and 64 layers of 8 heads x 128.
PairPlanInput Qwen() {
  PairPlanInput input;
  input.source = {.layers = 40, .kv_heads = 8, .head_dim = 128};
  input.target = {.layers = 64, .kv_heads = 8, .head_dim = 128};
  return input;
}

std::map<std::string, Quantity> ByName(const PairPlanInput& input) {
  std::map<std::string, Quantity> found;
  const std::vector<Quantity> plan = MakePairPlan(input).value();
  for (const Quantity& q : plan) found[q.stage + "." + q.name] = q;
  return found;
}

// The figures of docs/method.md.
TEST(PairPlanTest, SizesAreThoseOfThePaper) {
  const auto plan = ByName(Qwen());
  EXPECT_EQ(plan.at("capture.rows").value, 128'000);
  EXPECT_EQ(plan.at("mapper.parameters").value, 1'073'872'896);
  EXPECT_EQ(plan.at("mapper.size").value, 2 * 1'073'872'896.0);
  EXPECT_NEAR(*plan.at("serve.map").value, 2.15e9, 0.01e9);
  EXPECT_EQ(plan.at("capture.disk").value, 128'000.0 * 4 * 104 * 1024);
}

TEST(PairPlanTest, HeadLocalTakesAnEighthOfEightHeads) {
  PairPlanInput input = Qwen();
  const auto full = ByName(input);
  input.head_local = true;
  const auto local = ByName(input);
  EXPECT_NEAR(*local.at("serve.map").value, *full.at("serve.map").value / 8, 1);
  EXPECT_NEAR(*local.at("accumulate.work").value, *full.at("accumulate.work").value / 8, 1);
  EXPECT_LT(*local.at("accumulate.disk").value, *full.at("accumulate.disk").value / 7.9);
}

TEST(PairPlanTest, TimesComeFromRatesOrAreNotNumbers) {
  PairPlanInput input = Qwen();
  for (const auto& [name, q] : ByName(input)) {
    EXPECT_EQ(q.value.has_value(), q.provenance != Provenance::kUnmeasured) << name;
    if (q.unit == "seconds") {
      EXPECT_EQ(q.provenance, Provenance::kUnmeasured) << name;
    }
  }
  input.fp32_flops = 1e11;
  input.map_flops = 1e12;
  input.capture_tokens_per_second = 1000;
  input.prefill_tokens_per_second = 100;
  const auto plan = ByName(input);
  EXPECT_EQ(plan.at("accumulate.time").provenance, Provenance::kMeasured);
  EXPECT_DOUBLE_EQ(*plan.at("accumulate.time").value, *plan.at("accumulate.work").value / 1e11);
  EXPECT_EQ(plan.at("capture.time").provenance, Provenance::kStated);
  EXPECT_EQ(plan.at("capture.time").value, 512.0);
  EXPECT_DOUBLE_EQ(*plan.at("serve.break-even").value, 1e12 / *plan.at("serve.map").value / 100);
  EXPECT_EQ(plan.at("solve.time").provenance, Provenance::kUnmeasured);
}

TEST(PairPlanTest, MoreLayersThanThereAreMeansAll) {
  PairPlanInput input = Qwen();
  input.k = 1000;
  const auto all = ByName(input);
  input.k = 40;
  EXPECT_EQ(all.at("mapper.parameters").value, ByName(input).at("mapper.parameters").value);
}

TEST(PairPlanTest, FieldsOutOfRangeAreNamed) {
  PairPlanInput input = Qwen();
  input.stride = 0;
  EXPECT_EQ(MakePairPlan(input).status(),
            absl::InvalidArgumentError("stride: expected at least 1, got 0"));
  input = Qwen();
  input.source.kv_heads = 4;
  input.head_local = true;
  EXPECT_EQ(MakePairPlan(input).status(),
            absl::FailedPreconditionError("head_local: expected equal kv heads, got 4 and 8"));
}

}  // namespace
}  // namespace kvbridge::plan
