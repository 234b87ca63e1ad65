#include "client/cpp/circuit.h"

#include <gtest/gtest.h>

namespace kvbridge::client {
namespace {

class CircuitTest : public ::testing::Test {
 protected:
  void Fail(int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(circuit_.Admit(now_));
      circuit_.Failed(now_);
    }
  }
  absl::Time now_ = absl::UnixEpoch();
  Circuit circuit_{3, absl::Seconds(5)};
};

TEST_F(CircuitTest, OpensAfterFailuresInARowOnly) {
  Fail(2);
  ASSERT_TRUE(circuit_.Admit(now_));
  circuit_.Succeeded();
  Fail(2);
  EXPECT_EQ(circuit_.state(now_), Circuit::State::kClosed);
  Fail(1);
  EXPECT_EQ(circuit_.state(now_), Circuit::State::kOpen);
  EXPECT_FALSE(circuit_.Admit(now_));
}

TEST_F(CircuitTest, LetsOneCallThroughAfterAWhile) {
  Fail(3);
  now_ += absl::Seconds(5) - absl::Nanoseconds(1);
  EXPECT_FALSE(circuit_.Admit(now_));
  now_ += absl::Nanoseconds(1);
  EXPECT_EQ(circuit_.state(now_), Circuit::State::kHalfOpen);
  EXPECT_TRUE(circuit_.Admit(now_));
  EXPECT_FALSE(circuit_.Admit(now_));
  circuit_.Succeeded();
  EXPECT_EQ(circuit_.state(now_), Circuit::State::kClosed);
  EXPECT_TRUE(circuit_.Admit(now_));
  EXPECT_TRUE(circuit_.Admit(now_));
}

TEST_F(CircuitTest, AFailedProbeOpensItAgain) {
  Fail(3);
  now_ += absl::Seconds(5);
  Fail(1);
  EXPECT_FALSE(circuit_.Admit(now_));
  now_ += absl::Seconds(5);
  EXPECT_TRUE(circuit_.Admit(now_));
}

TEST_F(CircuitTest, ACancelledProbeLeavesRoomForAnother) {
  Fail(3);
  now_ += absl::Seconds(5);
  ASSERT_TRUE(circuit_.Admit(now_));
  circuit_.Abandoned();
  EXPECT_TRUE(circuit_.Admit(now_));
}

}  // namespace
}  // namespace kvbridge::client
