#include "core/guard/circuit.h"

#include "gtest/gtest.h"

namespace kvbridge::guard {
namespace {

constexpr CircuitPolicy kPolicy = {.window = absl::Seconds(10),
                                   .min_transfers = 4,
                                   .max_bad_share = 0.5,
                                   .open_for = absl::Seconds(5),
                                   .probes = 2};

class CircuitTest : public ::testing::Test {
 protected:
  // One transfer, from its admission to its end. False when it was not tried.
  bool Try(TryResult result) {
    if (!circuit_.Admit(now_)) return false;
    circuit_.Ended(result, now_);
    return true;
  }
  void Try(TryResult result, int times) {
    for (int i = 0; i < times; ++i) Try(result);
  }
  void OpenIt() {
    Try(TryResult::kBad, kPolicy.min_transfers);
    ASSERT_EQ(circuit_.state(), CircuitState::kOpen);
  }

  absl::Time now_ = absl::FromUnixSeconds(1700000000);
  Circuit circuit_{kPolicy};
};

TEST_F(CircuitTest, OpensWhenMoreThanTheShareFailed) {
  Try(TryResult::kGood, 2);
  Try(TryResult::kBad, 2);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
  EXPECT_TRUE(circuit_.Admit(now_));
  EXPECT_TRUE(circuit_.Ended(TryResult::kBad, now_));
  EXPECT_EQ(circuit_.state(), CircuitState::kOpen);
  EXPECT_FALSE(circuit_.Admit(now_));
}

TEST_F(CircuitTest, AFewFailuresOpenNothing) {
  Try(TryResult::kBad, kPolicy.min_transfers - 1);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
}

TEST_F(CircuitTest, FailuresThatLeftTheWindowAreForgotten) {
  Try(TryResult::kBad, kPolicy.min_transfers - 1);
  now_ += kPolicy.window;
  Try(TryResult::kBad, kPolicy.min_transfers - 1);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
}

TEST_F(CircuitTest, WhatIsNotTheRoutesFaultCountsNeitherWay) {
  Try(TryResult::kNeutral, 100);
  Try(TryResult::kBad, kPolicy.min_transfers);
  EXPECT_EQ(circuit_.state(), CircuitState::kOpen);
}

TEST_F(CircuitTest, HalfOpenLetsAFewThroughAndNoMore) {
  OpenIt();
  now_ += kPolicy.open_for - absl::Milliseconds(1);
  EXPECT_FALSE(circuit_.Admit(now_));
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(circuit_.Admit(now_));
  EXPECT_EQ(circuit_.state(), CircuitState::kHalfOpen);
  EXPECT_TRUE(circuit_.Admit(now_));
  EXPECT_FALSE(circuit_.Admit(now_));
}

TEST_F(CircuitTest, ClosesWhenEveryProbeSucceeded) {
  OpenIt();
  now_ += kPolicy.open_for;
  Try(TryResult::kGood);
  EXPECT_EQ(circuit_.state(), CircuitState::kHalfOpen);
  Try(TryResult::kGood);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
  // What opened it is forgotten.
  Try(TryResult::kBad, kPolicy.min_transfers - 1);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
}

TEST_F(CircuitTest, OpensAgainWhenAProbeFails) {
  OpenIt();
  now_ += kPolicy.open_for;
  Try(TryResult::kGood);
  Try(TryResult::kBad);
  EXPECT_EQ(circuit_.state(), CircuitState::kOpen);
  now_ += kPolicy.open_for - absl::Milliseconds(1);
  EXPECT_FALSE(circuit_.Admit(now_));
}

TEST_F(CircuitTest, AProbeThatToldNothingGivesItsPlaceToAnother) {
  OpenIt();
  now_ += kPolicy.open_for;
  Try(TryResult::kNeutral, 10);
  EXPECT_EQ(circuit_.state(), CircuitState::kHalfOpen);
  Try(TryResult::kGood, 2);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
}

TEST_F(CircuitTest, StragglersOfATimeBeforeItOpenedChangeNothing) {
  EXPECT_TRUE(circuit_.Admit(now_));
  OpenIt();
  EXPECT_FALSE(circuit_.Ended(TryResult::kGood, now_));
  EXPECT_EQ(circuit_.state(), CircuitState::kOpen);
}

TEST_F(CircuitTest, AnOperatorsWordStandsUntilTheNext) {
  circuit_.Override(CircuitOverride::kForceOpen);
  EXPECT_EQ(circuit_.state(), CircuitState::kOpen);
  now_ += kPolicy.open_for;
  EXPECT_FALSE(circuit_.Admit(now_));
  circuit_.Override(CircuitOverride::kForceClosed);
  Try(TryResult::kBad, 100);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
  circuit_.Override(CircuitOverride::kAuto);
  OpenIt();
}

TEST_F(CircuitTest, OneThatIsDisabledNeverOpens) {
  CircuitPolicy policy = kPolicy;
  policy.enabled = false;
  circuit_.SetPolicy(policy);
  Try(TryResult::kBad, 100);
  EXPECT_EQ(circuit_.state(), CircuitState::kClosed);
}

}  // namespace
}  // namespace kvbridge::guard
