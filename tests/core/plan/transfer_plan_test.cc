#include "core/plan/transfer_plan.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"

namespace kvbridge::plan {
namespace {

using guard::Reason;

class TransferPlanTest : public testing::Test {
 protected:
  TransferPlanTest() {
    // 2 * 2 layers * 16 * 4 = 256 and 2 * 4 * 16 * 4 = 512 bytes per token.
    mapper_ =
        test::FakeMapper(test::FakeModel("small", 2, 2, 8), test::FakeModel("large", 4, 2, 8));
    in_.prompt_tokens = 101;
    in_.proven = true;
  }
  void Measure() {
    in_.map_seconds_per_token = 1e-3;
    in_.ingress_seconds_per_byte = 1e-6;
    in_.egress_seconds_per_byte = 2e-6;
  }
  TransferPlan Plan() { return MakeTransferPlan(in_, mapper_, policy_).value(); }

  TransferPlanInput in_;
  mapper::Mapper mapper_;
  guard::RoutePolicy policy_;
};

TEST_F(TransferPlanTest, SizesAreExactAndTimesUnmeasuredAreNoNumbers) {
  const TransferPlan plan = Plan();
  EXPECT_TRUE(plan.worth_it);
  EXPECT_EQ(plan.detail, "no prefill rate was stated, so nothing was compared");
  EXPECT_EQ(plan.covered_tokens, 100);
  EXPECT_EQ(plan.bytes_in, 25600);
  EXPECT_EQ(plan.bytes_out, 51200);
  EXPECT_EQ(plan.map_flops, 100 * mapper_.flops_per_token());
  for (const Estimate& e : {plan.map_seconds, plan.move_seconds, plan.total_seconds,
                            plan.prefill_seconds, plan.break_even_tokens}) {
    EXPECT_EQ(e, Estimate());
  }
}

TEST_F(TransferPlanTest, TimesFollowFromTheMeasuredRates) {
  Measure();
  in_.prefill_tokens_per_second = 100;
  const TransferPlan plan = Plan();
  EXPECT_DOUBLE_EQ(*plan.map_seconds.value, 0.1);
  EXPECT_DOUBLE_EQ(*plan.move_seconds.value, 0.0256 + 0.1024);
  EXPECT_DOUBLE_EQ(*plan.total_seconds.value, 0.1 + 0.128);
  EXPECT_DOUBLE_EQ(*plan.prefill_seconds.value, 1);
  EXPECT_EQ(plan.total_seconds.provenance, Provenance::kDerived);
  EXPECT_TRUE(plan.worth_it);
  EXPECT_EQ(plan.detail, "");
  EXPECT_DOUBLE_EQ(*plan.break_even_tokens.value, 2);
}

TEST_F(TransferPlanTest, BreakEvenIsWhereTheAnswerTurns) {
  Measure();
  in_.prefill_tokens_per_second = 100;
  in_.native_tail = 17;
  policy_.min_covered_tokens = 40;
  const auto n = static_cast<int64_t>(*Plan().break_even_tokens.value);
  in_.prompt_tokens = n;
  EXPECT_TRUE(Plan().worth_it);
  in_.prompt_tokens = n - 1;
  EXPECT_FALSE(Plan().worth_it);
  EXPECT_EQ(Plan().reason, Reason::kNotWorthIt);
}

TEST_F(TransferPlanTest, FasterPrefillAtEveryLengthHasNoBreakEven) {
  Measure();
  in_.prefill_tokens_per_second = 1e6;
  const TransferPlan plan = Plan();
  EXPECT_FALSE(plan.worth_it);
  EXPECT_EQ(plan.reason, Reason::kNotWorthIt);
  EXPECT_EQ(plan.break_even_tokens, (Estimate{std::nullopt, Provenance::kDerived}));
}

TEST_F(TransferPlanTest, TheMapAloneIsALowerBoundOfTheTransfer) {
  in_.map_seconds_per_token = 1e-3;
  in_.prefill_tokens_per_second = 1000;
  EXPECT_FALSE(Plan().worth_it);
  EXPECT_EQ(Plan().reason, Reason::kNotWorthIt);
  EXPECT_EQ(Plan().detail, "prefilling 100 tokens takes 0.1 s, the transfer at least 0.1 s");
  EXPECT_EQ(Plan().total_seconds, Estimate());
  EXPECT_EQ(Plan().break_even_tokens, (Estimate{std::nullopt, Provenance::kDerived}));
  in_.prefill_tokens_per_second = 999;
  EXPECT_TRUE(Plan().worth_it);
  EXPECT_EQ(Plan().detail, "moving the bytes is unmeasured until a transfer has been seen");
  EXPECT_EQ(Plan().break_even_tokens, Estimate());
}

TEST_F(TransferPlanTest, RoutesThatDoNotServeAreNotWorthAsking) {
  policy_.stage = guard::RouteStage::kOff;
  EXPECT_EQ(Plan().reason, Reason::kRouteDisabled);
  policy_.stage = guard::RouteStage::kShadow;
  EXPECT_EQ(Plan().detail, "the route is in stage shadow");
  policy_.stage = guard::RouteStage::kCanary;
  EXPECT_TRUE(Plan().worth_it);
  in_.proven = false;
  EXPECT_EQ(Plan().reason, Reason::kUnprovenPair);
  policy_.allow_unproven = true;
  EXPECT_TRUE(Plan().worth_it);
  in_.prompt_tokens = 1;
  EXPECT_EQ(Plan().reason, Reason::kNotWorthIt);
  EXPECT_EQ(Plan().covered_tokens, 0);
}

TEST_F(TransferPlanTest, NonsenseIsRefusedByName) {
  const auto message = [&] {
    return std::string(MakeTransferPlan(in_, mapper_, policy_).status().message());
  };
  in_.prompt_tokens = 0;
  EXPECT_EQ(message(), "prompt_tokens: expected 1 to 2^40, got 0");
  in_.prompt_tokens = 1;
  in_.prefill_tokens_per_second = std::nan("");
  EXPECT_THAT(message(), testing::StartsWith("prefill_tokens_per_second: expected"));
  in_.prefill_tokens_per_second = -1;
  EXPECT_THAT(message(), testing::StartsWith("prefill_tokens_per_second: expected"));
}

TEST(ProvenanceTest, NamesAreTheWires) {
  EXPECT_EQ(Name(Provenance::kUnmeasured), "unmeasured");
  EXPECT_EQ(Name(Provenance::kDerived), "derived");
  EXPECT_EQ(Name(Provenance::kMeasured), "measured");
  EXPECT_EQ(Name(Provenance::kStated), "stated");
}

}  // namespace
}  // namespace kvbridge::plan
