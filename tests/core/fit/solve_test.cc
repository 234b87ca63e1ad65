#include "core/fit/solve.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/fit/reference_moments.h"

namespace kvbridge::fit {
namespace {

using base::Json;
using mapper::Support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Moments SmallMoments(int64_t fit = 300, int64_t held_out = 100, double noise = 0.3,
                     Layout layout = Layout::kFull) {
  TestFamily family = SmallFamily();
  family.noise = noise;
  return ReferenceMoments(family, family.Draw(fit, 1), family.Draw(held_out, 2), layout);
}

std::vector<float> Floats(const mapper::TensorRef& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

std::vector<std::vector<std::byte>> AllBytes(const mapper::Mapper& mapper) {
  std::vector<std::vector<std::byte>> bytes;
  for (const auto* layers : {&mapper.keys, &mapper.values}) {
    for (const mapper::LayerMap& layer : *layers) {
      for (const mapper::TensorRef* tensor : {&layer.weight, &layer.bias}) {
        bytes.emplace_back(tensor->data.begin(), tensor->data.end());
      }
    }
  }
  return bytes;
}

double HeldOut(const Json& calibration, const char* component) {
  return calibration["choice"]["r2_held_out"][component].get<double>();
}

TEST(SolveTest, DefaultsFindTheFamilysParents) {
  const Solution solution = *Solve(SmallMoments(), {});
  ASSERT_TRUE(mapper::Validate(solution.mapper).ok());
  EXPECT_EQ(solution.provenance.verdict(), artifact::Verdict::kUnproven);
  const Json& record = solution.provenance.calibration;
  EXPECT_EQ(record["criterion"], "held_out");
  EXPECT_EQ(record["rows"], Json({{"fit", 300}, {"held_out", 100}, {"final", 400}}));
  EXPECT_GT(HeldOut(record, "key"), 0.98);
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(solution.mapper.keys[l].sources.front(), SmallFamily().parents[l].front());
  }
}

TEST(SolveTest, WeightsAreTheRidgesByHeadWithItsBias) {
  const Moments moments = SmallMoments(300, 0);
  SolveOptions options = PrototypeOptions(2);
  const Solution solution = *Solve(moments, options);
  const mapper::LayerMap& map = solution.mapper.values[1];
  EXPECT_THAT(map.sources, ElementsAre(2, 1));
  EXPECT_THAT(map.weight.shape, ElementsAre(2, 16, 4));
  const ColumnAudit audit = *AuditColumns(moments);
  const Unit unit = UnitsFor(moments, audit, 1, kv::Component::kValue, Support::kFull)->front();
  const Ridge ridge = *SolveRidge(Gather(unit, map.sources, RowSet::kFit), *options.lambda);
  const std::vector<float> weight = Floats(map.weight);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 16; ++i) {
      for (int64_t d = 0; d < 4; ++d) {
        EXPECT_EQ(weight[(h * 16 + i) * 4 + d], static_cast<float>(ridge.weight.row(i)[h * 4 + d]));
      }
    }
  }
  EXPECT_EQ(Floats(map.bias)[6], static_cast<float>(ridge.bias[6]));
}

TEST(SolveTest, HeadLocalHeadsReadTheirOwn) {
  for (const Layout layout : {Layout::kFull, Layout::kHeadLocal}) {
    SolveOptions options = PrototypeOptions(1);
    options.support = SupportRule::kHeadLocal;
    const Moments moments = SmallMoments(300, 0, 0.3, layout);
    const Solution solution = *Solve(moments, options);
    ASSERT_TRUE(mapper::Validate(solution.mapper).ok());
    const mapper::LayerMap& map = solution.mapper.keys[0];
    EXPECT_EQ(map.support, Support::kHeadLocal);
    const ColumnAudit audit = *AuditColumns(moments);
    const Unit unit = (*UnitsFor(moments, audit, 0, kv::Component::kKey, map.support))[1];
    const Ridge ridge = *SolveRidge(Gather(unit, map.sources, RowSet::kFit), *options.lambda);
    EXPECT_NEAR(Floats(map.weight)[4 * 4 + 2 * 4 + 3], ridge.weight.row(2)[3], 1e-6);
  }
}

TEST(SolveTest, ThreadsDoNotChangeABit) {
  const Moments moments = SmallMoments();
  const Solution one = *Solve(moments, {.threads = 1});
  const Solution three = *Solve(moments, {.threads = 3});
  EXPECT_EQ(AllBytes(one.mapper), AllBytes(three.mapper));
  EXPECT_EQ(one.provenance.calibration, three.provenance.calibration);
}

TEST(SolveTest, JointListsAreTheSameForKeysAndValues) {
  SolveOptions options;
  options.joint_lists = true;
  options.choice = ChoiceRule::kFixed;
  options.k = 2;
  options.support = SupportRule::kFull;
  const Solution solution = *Solve(SmallMoments(), options);
  for (size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(solution.mapper.keys[l].sources, solution.mapper.values[l].sources);
  }
  EXPECT_EQ(solution.provenance.calibration["choice"]["k"], 2);
}

// Target keys that are made of the source's values are only found where both are read.
TEST(SolveTest, JointMomentsReadTheOtherComponent) {
  const TestFamily family = SmallFamily();
  TestRows fit = family.Draw(300, 1);
  TestRows held_out = family.Draw(100, 2);
  for (TestRows* rows : {&fit, &held_out}) std::swap(rows->source[0], rows->source[1]);
  const Moments moments = ReferenceMoments(family, fit, held_out, Layout::kJoint);
  const Solution solution = *Solve(moments, {});
  ASSERT_TRUE(mapper::Validate(solution.mapper).ok());
  EXPECT_GT(HeldOut(solution.provenance.calibration, "key"), 0.98);
  EXPECT_EQ(solution.mapper.keys[1].cross_sources[0], 2);
  EXPECT_EQ(solution.mapper.values[2].cross_sources[0], 3);

  SolveOptions apart;
  apart.cross = false;
  EXPECT_LT(HeldOut(Solve(moments, apart)->provenance.calibration, "key"), 0.1);
}

TEST(SolveTest, JointMomentsWithoutCrossAreFullMoments) {
  const TestFamily family = SmallFamily();
  const TestRows fit = family.Draw(300, 1);
  const TestRows held_out = family.Draw(100, 2);
  SolveOptions apart;
  apart.cross = false;
  const Solution joint = *Solve(ReferenceMoments(family, fit, held_out, Layout::kJoint), apart);
  const Solution full = *Solve(ReferenceMoments(family, fit, held_out), apart);
  EXPECT_EQ(AllBytes(joint.mapper), AllBytes(full.mapper));
}

TEST(SolveTest, ABudgetIsNotExceeded) {
  SolveOptions options;
  options.choice = ChoiceRule::kBudget;
  options.budget_bytes = 1000;
  const Solution solution = *Solve(SmallMoments(), options);
  const int64_t spent = 2 * solution.mapper.parameters();
  EXPECT_LE(spent, 1000);
  EXPECT_GT(spent, 800);
  EXPECT_EQ(solution.provenance.calibration["choice"]["weight_bytes"], spent);
}

TEST(SolveTest, AutoSupportAtFixedKSpendsNoMoreThanFullHead) {
  SolveOptions options;
  options.choice = ChoiceRule::kFixed;
  options.k = 1;
  const Solution mixed = *Solve(SmallMoments(), options);
  options.support = SupportRule::kFull;
  const Solution full = *Solve(SmallMoments(), options);
  EXPECT_LE(mixed.mapper.parameters(), full.mapper.parameters());
  EXPECT_GE(
      HeldOut(mixed.provenance.calibration, "key") + HeldOut(mixed.provenance.calibration, "value"),
      HeldOut(full.provenance.calibration, "key") + HeldOut(full.provenance.calibration, "value"));
}

TEST(SolveTest, FewRowsDoNotCollapse) {
  const Moments moments = SmallMoments(24, 60, 8.0);
  const Solution best = *Solve(moments, {});
  for (int32_t k = 1; k <= 4; ++k) {
    SolveOptions fixed = {.support = SupportRule::kFull, .choice = ChoiceRule::kFixed, .k = k};
    const Solution other = *Solve(moments, fixed);
    for (const char* c : {"key", "value"}) {
      EXPECT_GE(HeldOut(best.provenance.calibration, c), HeldOut(other.provenance.calibration, c))
          << k << " " << c;
    }
  }
}

TEST(SolveTest, NothingHeldOutIsJudgedByCrossValidation) {
  const Solution solution = *Solve(SmallMoments(300, 0), {});
  const Json& record = solution.provenance.calibration;
  EXPECT_EQ(record["criterion"], "gcv");
  EXPECT_TRUE(record["layers"][0]["key"]["r2_held_out"].is_null());
  EXPECT_GT(record["layers"][0]["key"]["r2_in_sample"].get<double>(), 0.98);
}

TEST(SolveTest, TheRecordSaysWhatRoundingCost) {
  const Solution solution = *Solve(SmallMoments(), {});
  for (const Json& layer : solution.provenance.calibration["layers"]) {
    for (const char* c : {"key", "value"}) {
      const Json& rounding = layer[c]["rounding"];
      const bool fed = rounding["used"] == "feedback";
      EXPECT_EQ(fed, rounding["feedback"].get<double>() < rounding["plain"].get<double>());
    }
  }
}

TEST(SolveTest, TheRecordHoldsTheWholeCurve) {
  const Solution solution = *Solve(SmallMoments(), {});
  const Json& record = solution.provenance.calibration;
  EXPECT_EQ(record["layers"].size(), 3);
  EXPECT_EQ(record["layers"][0]["key"]["curve"].size(), 8);  // 4 full-head, 4 head-local
  EXPECT_EQ(record["layers"][0]["key"]["heads"]["r2_held_out"].size(), 2);
  EXPECT_EQ(record["sweep"].size(), 8);
  EXPECT_EQ(record["probe_scores"]["value"].size(), 3);
  EXPECT_EQ(record["probe_scores"]["value"][0].size(), 4);
}

TEST(SolveTest, TooLittleMemorySaysWhatIsNeeded) {
  const absl::Status status = Solve(SmallMoments(), {.memory_bytes = 1000}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fit.memory: expected at least"));
}

TEST(SolveTest, StopsWhenAsked) {
  std::stop_source stop;
  stop.request_stop();
  SolveOptions options;
  options.stop = stop.get_token();
  EXPECT_EQ(Solve(SmallMoments(), options).status().code(), absl::StatusCode::kCancelled);
}

TEST(SolveTest, BadOptionsAreNamed) {
  SolveOptions options;
  options.k = 0;
  EXPECT_THAT(std::string(Solve(SmallMoments(), options).status().message()),
              HasSubstr("fit.k: expected at least 1, got 0"));
  options = {};
  options.lambda = Lambda{.value = -1};
  EXPECT_THAT(std::string(Solve(SmallMoments(), options).status().message()),
              HasSubstr("fit.lambda: expected a finite number, 0 or more, got -1"));
  options = {};
  options.component_weight = {0, 1};
  EXPECT_EQ(Solve(SmallMoments(), options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvbridge::fit
