#include "core/rope/inv_freq.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvbridge::rope {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

RopeParams Make(double theta, int32_t rotary_dim, const RopeScaling& scaling) {
  auto params = MakeRopeParams(theta, rotary_dim, Pairing::kHalf, scaling);
  EXPECT_TRUE(params.ok()) << params.status();
  return params.ok() ? *std::move(params) : RopeParams{};
}

void ExpectRefused(double theta, int32_t rotary_dim, const RopeScaling& scaling, const char* field,
                   const char* got) {
  const auto params = MakeRopeParams(theta, rotary_dim, Pairing::kHalf, scaling);
  EXPECT_EQ(params.status().code(), absl::StatusCode::kInvalidArgument) << field;
  EXPECT_THAT(std::string(params.status().message()), AllOf(HasSubstr(field), HasSubstr(got)));
}

auto Near(double value) { return DoubleNear(value, 1e-12); }

TEST(InvFreqTest, DefaultIsThePowerLawOverTheRotaryDimension) {
  const RopeParams params = Make(10000, 4, DefaultScaling{});
  EXPECT_THAT(params.inv_freq, ElementsAre(1.0, Near(0.01)));
  EXPECT_EQ(params.attention_factor, 1.0);
  EXPECT_EQ(params.rotary_dim, 4);
}

TEST(InvFreqTest, LinearDividesEveryFrequency) {
  EXPECT_THAT(Make(10000, 4, LinearScaling{4}).inv_freq, ElementsAre(0.25, Near(0.0025)));
}

TEST(InvFreqTest, PairingIsKept) {
  const auto params = MakeRopeParams(10000, 4, Pairing::kInterleaved, DefaultScaling{});
  ASSERT_TRUE(params.ok());
  EXPECT_EQ(params->pairing, Pairing::kInterleaved);
}

// theta = e^8, d = 8: f = 1, e^-2, e^-4, e^-6; turns in 8192 = 8192 f / 2 pi = 1303.8,
// 176.4, 23.9, 3.23.
TEST(InvFreqTest, Llama3KeepsFastBlendsMiddleAndDividesSlow) {
  const double theta = std::exp(8.0);
  const RopeParams params = Make(theta, 8, Llama3Scaling{32, 1, 4, 8192});
  const double slow = std::exp(-6.0);
  const double keep = (8192 * slow / (2 * M_PI) - 1) / 3;
  EXPECT_THAT(params.inv_freq, ElementsAre(1.0, Near(std::exp(-2.0)), Near(std::exp(-4.0)),
                                           Near(slow * ((1 - keep) / 32 + keep))));
  // Below one turn the frequency is divided by the factor: the same list with a short original
  // context.
  EXPECT_NEAR(Make(theta, 8, Llama3Scaling{32, 1, 4, 1024}).inv_freq[3], slow / 32, 1e-15);
}

TEST(InvFreqTest, Llama3DiffersFromDefaultAndFromLinear) {
  const auto llama3 = Make(500000, 16, Llama3Scaling{32, 1, 4, 8192}).inv_freq;
  EXPECT_NE(llama3, Make(500000, 16, DefaultScaling{}).inv_freq);
  EXPECT_NE(llama3, Make(500000, 16, LinearScaling{32}).inv_freq);
}

YarnScaling Yarn(double factor) {
  YarnScaling yarn;
  yarn.factor = factor;
  yarn.original_max_position = 32768;
  return yarn;
}

// d = 128, theta = 1e6, original 32768: bound(32) = 23.59..., bound(1) = 39.65...
TEST(InvFreqTest, YarnRampsBetweenTheTruncatedBounds) {
  const auto plain = Make(1e6, 128, DefaultScaling{}).inv_freq;
  const auto yarn = Make(1e6, 128, Yarn(4)).inv_freq;
  EXPECT_EQ(yarn[23], plain[23]);
  EXPECT_NEAR(yarn[24], plain[24] * (16.0 / 17 + 1.0 / 17 / 4), 1e-15);
  EXPECT_NEAR(yarn[40], plain[40] / 4, 1e-15);
  EXPECT_LT(yarn[39], plain[39]);
  EXPECT_GT(yarn[39], plain[39] / 4);
}

TEST(InvFreqTest, YarnWithoutTruncationUsesTheFractionalBounds) {
  YarnScaling yarn = Yarn(4);
  yarn.truncate = false;
  const double low = 128 * std::log(32768 / (64 * M_PI)) / (2 * std::log(1e6));
  const double high = 128 * std::log(32768 / (2 * M_PI)) / (2 * std::log(1e6));
  const double ramp = (30 - low) / (high - low);
  const double plain = std::pow(1e6, -60.0 / 128);
  EXPECT_NEAR(Make(1e6, 128, yarn).inv_freq[30], plain * (1 - ramp + ramp / 4), 1e-15);
}

TEST(InvFreqTest, YarnAttentionFactorFollowsTheFactorAlone) {
  EXPECT_NEAR(Make(1e6, 128, Yarn(4)).attention_factor, 1 + 0.1 * std::log(4.0), 1e-15);
  EXPECT_EQ(Make(1e6, 128, Yarn(1)).attention_factor, 1.0);
}

TEST(InvFreqTest, YarnEqualMscalesCancel) {
  YarnScaling yarn = Yarn(40);
  yarn.mscale = 0.707;
  yarn.mscale_all_dim = 0.707;
  EXPECT_EQ(Make(1e4, 64, yarn).attention_factor, 1.0);
}

TEST(InvFreqTest, YarnMscalesFormARatioAndOneAloneCountsForNothing) {
  YarnScaling yarn = Yarn(40);
  yarn.mscale = 1.0;
  EXPECT_NEAR(Make(1e4, 64, yarn).attention_factor, 1 + 0.1 * std::log(40.0), 1e-15);
  yarn.mscale_all_dim = 0.5;
  EXPECT_NEAR(Make(1e4, 64, yarn).attention_factor,
              (1 + 0.1 * std::log(40.0)) / (1 + 0.05 * std::log(40.0)), 1e-15);
  yarn.mscale_all_dim = 0.0;  // zero means absent
  EXPECT_NEAR(Make(1e4, 64, yarn).attention_factor, 1 + 0.1 * std::log(40.0), 1e-15);
}

TEST(InvFreqTest, YarnExplicitAttentionFactorWins) {
  YarnScaling yarn = Yarn(4);
  yarn.attention_factor = 1.25;
  yarn.mscale = yarn.mscale_all_dim = 0.707;
  EXPECT_EQ(Make(1e6, 128, yarn).attention_factor, 1.25);
}

LongRopeScaling LongRope(std::vector<double> factors, double factor) {
  LongRopeScaling longrope;
  longrope.factors = std::move(factors);
  longrope.factor = factor;
  longrope.original_max_position = 4096;
  return longrope;
}

TEST(InvFreqTest, LongRopeDividesByTheStatedList) {
  const RopeParams params = Make(10000, 4, LongRope({2, 5}, 32));
  EXPECT_THAT(params.inv_freq, ElementsAre(0.5, Near(0.002)));
  EXPECT_NEAR(params.attention_factor, std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-15);
  EXPECT_NEAR(params.attention_factor, 1.1902380714238083, 1e-15);  // Phi-3's
}

TEST(InvFreqTest, LongRopeFactorOneLeavesTheSizeAlone) {
  EXPECT_EQ(Make(10000, 4, LongRope({1, 1}, 1)).attention_factor, 1.0);
  EXPECT_EQ(Make(10000, 4, LongRope({1, 1}, 0.5)).attention_factor, 1.0);
}

TEST(InvFreqTest, NumbersThatMakeNoSenseAreRefusedByName) {
  ExpectRefused(1, 4, DefaultScaling{}, "rope_theta", "got 1");
  ExpectRefused(NAN, 4, DefaultScaling{}, "rope_theta", "nan");
  ExpectRefused(10000, 5, DefaultScaling{}, "rotary_dim", "got 5");
  ExpectRefused(10000, 0, DefaultScaling{}, "rotary_dim", "got 0");
  ExpectRefused(10000, 4, LinearScaling{0.5}, "factor", "got 0.5");
  ExpectRefused(10000, 4, LinearScaling{INFINITY}, "factor", "inf");
  ExpectRefused(10000, 4, Llama3Scaling{8, 4, 4, 8192}, "high_freq_factor", "got 4");
  ExpectRefused(10000, 4, Llama3Scaling{8, 0, 4, 8192}, "low_freq_factor", "got 0");
  ExpectRefused(10000, 4, Llama3Scaling{8, 1, 4, 0}, "original_max_position_embeddings", "got 0");
  ExpectRefused(10000, 4, LongRope({2}, 32), "2 entries", "got 1");
  ExpectRefused(10000, 4, LongRope({2, 0}, 32), "list[1]", "got 0");
  ExpectRefused(10000, 4, LongRope({2, NAN}, 32), "list[1]", "nan");
  YarnScaling yarn = Yarn(4);
  yarn.beta_fast = 0.5;
  ExpectRefused(10000, 4, yarn, "beta_fast", "got 0.5");
  yarn = Yarn(4);
  yarn.attention_factor = 0;
  ExpectRefused(10000, 4, yarn, "attention_factor", "got 0");
  yarn = Yarn(4);
  yarn.mscale = -100;
  yarn.mscale_all_dim = 1;
  ExpectRefused(10000, 4, yarn, "attention_factor", "-");
}

RopeParams Sound() { return {{1.0, 0.1}, 1.0, 4, Pairing::kHalf}; }

void ExpectInvalid(const RopeParams& params, int32_t head_dim, const char* message) {
  const absl::Status status = Validate(params, head_dim, "source.rope");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(RopeParamsTest, SoundParametersAreAccepted) {
  EXPECT_TRUE(Validate(Sound(), 4, "rope").ok());
  EXPECT_TRUE(Validate(Sound(), 64, "rope").ok());
  EXPECT_TRUE(Validate(RopeParams{}, 64, "rope").ok()) << "rotary_dim 0: keys are not rotated";
}

TEST(RopeParamsTest, EachFieldIsCheckedAndNamed) {
  RopeParams params = Sound();
  ExpectInvalid(params, 2,
                "source.rope.rotary_dim: expected an even number from 0 to head_dim = 2");
  params.rotary_dim = 6;
  ExpectInvalid(params, 64, "source.rope.inv_freq: expected rotary_dim / 2 = 3 frequencies, got 2");
  for (double bad : {0.0, -1.0, 7.0, double{NAN}, double{INFINITY}}) {
    params = Sound();
    params.inv_freq[1] = bad;
    ExpectInvalid(params, 64, "source.rope.inv_freq[1]");
  }
  for (double bad : {0.0, -1.0, 1e9, double{NAN}}) {
    params = Sound();
    params.attention_factor = bad;
    ExpectInvalid(params, 64, "source.rope.attention_factor");
  }
}

TEST(RopeParamsTest, PairingsHaveNames) {
  EXPECT_EQ(Name(Pairing::kHalf), "half");
  EXPECT_EQ(Name(Pairing::kInterleaved), "interleaved");
}

}  // namespace
}  // namespace kvbridge::rope
