// Rotation and its inverse on rows of floats.
#include "core/rope/rope_row.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/rope/inv_freq.h"
#include "core/rope/rope_table.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::rope {
namespace {

RopeTable TableAt(const RopeParams& params, const std::vector<int64_t>& positions) {
  return RopeTable(params, positions);
}

using ::testing::ElementsAre;
using ::testing::FloatNear;

RopeParams Default(int32_t rotary_dim, Pairing pairing, double theta = 10000) {
  return *MakeRopeParams(theta, rotary_dim, pairing, DefaultScaling{});
}

std::vector<float> Applied(const RopeParams& params, int64_t position, std::vector<float> head) {
  const RopeTable table = TableAt(params, {position});
  ApplyRope(table.row(0), head.data(), 1, static_cast<int32_t>(head.size()));
  return head;
}

std::vector<float> Stripped(const RopeParams& params, int64_t position, std::vector<float> head) {
  const RopeTable table = TableAt(params, {position});
  StripRope(table.row(0), head.data(), 1, static_cast<int32_t>(head.size()));
  return head;
}

const float kCos1 = std::cos(1.0), kSin1 = std::sin(1.0);

TEST(RopeRowTest, HalfPairingTurnsFirstDimensionIntoTheMiddle) {
  EXPECT_THAT(Applied(Default(4, Pairing::kHalf), 1, {1, 0, 0, 0}),
              ElementsAre(kCos1, 0, kSin1, 0));
}

TEST(RopeRowTest, InterleavedPairingTurnsFirstDimensionIntoTheSecond) {
  EXPECT_THAT(Applied(Default(4, Pairing::kInterleaved), 1, {1, 0, 0, 0}),
              ElementsAre(kCos1, kSin1, 0, 0));
}

TEST(RopeRowTest, HalfSourceMovesToInterleavedTarget) {
  const std::vector<float> key = {0.5f, -1, 2, 0.25f};
  const auto half = Default(4, Pairing::kHalf), interleaved = Default(4, Pairing::kInterleaved);
  const auto content = Stripped(half, 700, Applied(half, 700, key));
  const auto moved = Applied(interleaved, 700, content);
  const auto expected = Applied(interleaved, 700, key);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(moved[i], expected[i], 1e-6);
}

// head_dim 8, rotary_dim 4: the pairs are (0,2) and (1,3), the frequencies those of 4 dimensions.
TEST(RopeRowTest, PartialRotaryPairsInsideTheRotaryDimensions) {
  const auto out = Applied(Default(4, Pairing::kHalf), 3, {1, 1, 0, 0, 7, 8, 9, 10});
  const double slow = 3 * 0.01;
  EXPECT_THAT(out, ElementsAre(FloatNear(std::cos(3.0), 1e-7), FloatNear(std::cos(slow), 1e-7),
                               FloatNear(std::sin(3.0), 1e-7), FloatNear(std::sin(slow), 1e-7), 7,
                               8, 9, 10));
}

TEST(RopeRowTest, OddPartialSharesOfTheHeadLeaveTheRestAlone) {
  for (int32_t rotary_dim : {72, 24}) {  // head_dim 96, factors 0.75 and 0.25
    std::vector<float> key(96, 1.0f);
    const auto out = Applied(Default(rotary_dim, Pairing::kHalf), 3, key);
    for (int32_t d = 0; d < 96; ++d) {
      EXPECT_EQ(out[d] == 1.0f, d >= rotary_dim) << "rotary_dim " << rotary_dim << " dim " << d;
    }
  }
}

TEST(RopeRowTest, ZeroRotaryDimensionTouchesNothing) {
  EXPECT_THAT(Applied(RopeParams{}, 9, {1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(Stripped(RopeParams{}, 9, {1, 2}), ElementsAre(1, 2));
}

TEST(RopeRowTest, EveryHeadOfTheTokenIsRotated) {
  const auto params = Default(4, Pairing::kHalf);
  const RopeTable table = TableAt(params, {5});
  std::vector<float> heads = {1, 2, 3, 4, -1, 0, 1, 2};
  const auto first = Applied(params, 5, {1, 2, 3, 4}), second = Applied(params, 5, {-1, 0, 1, 2});
  ApplyRope(table.row(0), heads.data(), 2, 4);
  EXPECT_EQ(heads, (std::vector<float>{first[0], first[1], first[2], first[3], second[0], second[1],
                                       second[2], second[3]}));
}

TEST(RopeRowTest, RotatingTwiceIsNotRotatingOnce) {
  const auto params = Default(4, Pairing::kHalf);
  const std::vector<float> key = {1, 2, 3, 4};
  EXPECT_NE(Applied(params, 1, Applied(params, 1, key)), Applied(params, 1, key));
}

TEST(RopeRowTest, Llama3KeyMovesToDefaultTargetUnlikeSameParameters) {
  const auto llama3 = *MakeRopeParams(500000, 16, Pairing::kHalf, Llama3Scaling{32, 1, 4, 8192});
  const auto plain = Default(16, Pairing::kHalf, 500000);
  std::vector<float> key(16);
  for (int i = 0; i < 16; ++i) key[i] = 0.1f * static_cast<float>(i + 1);
  const auto cached = Applied(llama3, 700, key);
  const auto content = Stripped(llama3, 700, cached);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(content[i], key[i], 3e-7) << i;
  const auto moved = Applied(plain, 700, content);
  float distance = 0;
  for (int i = 0; i < 16; ++i) distance = std::max(distance, std::abs(moved[i] - cached[i]));
  EXPECT_GT(distance, 0.1f);
}

TEST(RopeRowTest, YarnStripRestoresTheNormThatTheTransposeInflates) {
  YarnScaling yarn;
  yarn.factor = 4;
  yarn.original_max_position = 32768;
  for (double explicit_factor : {0.0, 1.347}) {
    if (explicit_factor != 0) yarn.attention_factor = explicit_factor;
    const auto params = *MakeRopeParams(1e6, 64, Pairing::kHalf, yarn);
    const std::vector<float> key(64, 0.125f);  // norm 1
    const auto cached = Applied(params, 4097, key);
    const auto content = Stripped(params, 4097, cached);
    double cached_norm = 0, norm = 0;
    for (float v : cached) cached_norm += double{v} * v;
    for (float v : content) norm += double{v} * v;
    EXPECT_NEAR(std::sqrt(norm), 1.0, 1e-6);
    EXPECT_NEAR(std::sqrt(cached_norm), params.attention_factor, 1e-6);
  }
}

// (position, attention factor, pairing)
class RoundTripTest : public ::testing::TestWithParam<std::tuple<int64_t, double, Pairing>> {};

TEST_P(RoundTripTest, StripUndoesApplyToTwoUlpOfEachPair) {
  const auto [position, factor, pairing] = GetParam();
  auto params = Default(128, pairing, 1e6);
  params.attention_factor = factor;
  const RopeTable table = TableAt(params, {position});
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  double worst = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> key(128);
    for (float& v : key) v = normal(random);
    std::vector<float> out = key;
    ApplyRope(table.row(0), out.data(), 1, 128);
    StripRope(table.row(0), out.data(), 1, 128);
    for (int i = 0; i < 64; ++i) {
      const int a = pairing == Pairing::kHalf ? i : 2 * i;
      const int b = pairing == Pairing::kHalf ? i + 64 : 2 * i + 1;
      const double norm = std::hypot(double{key[a]}, double{key[b]});
      const double error =
          std::max(std::abs(double{out[a]} - key[a]), std::abs(double{out[b]} - key[b]));
      worst = std::max(worst, error / norm);
    }
  }
  EXPECT_LE(worst, 2 * std::ldexp(1.0, -23));
}

INSTANTIATE_TEST_SUITE_P(
    Positions, RoundTripTest,
    ::testing::Combine(::testing::Values<int64_t>(0, 255, 256, 257, 4097, 131071),
                       ::testing::Values(1.0, 1.139, 1.347),
                       ::testing::Values(Pairing::kHalf, Pairing::kInterleaved)));

// Golden: content, and the same keys rotated in FP32 by transformers' own modules.
struct GoldenCase {
  const char* name;
  const char* role;
  double attention_factor;
  Pairing pairing;
};

class GoldenStripTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenStripTest, StripsWhatTransformersRotated) {
  const GoldenCase& c = GetParam();
  const test::SafetensorsLite file(std::string("tests/data/golden/rope/") + c.name +
                                   "/tables.safetensors");
  const std::string role = std::string(c.role) + ".";
  RopeParams params;
  params.inv_freq = file.AsDouble(role + "inv_freq");
  params.rotary_dim = 2 * static_cast<int32_t>(params.inv_freq.size());
  params.attention_factor = c.attention_factor;
  params.pairing = c.pairing;

  const auto positions = file.AsInt64("gappy_positions");
  const RopeTable table(params, positions);
  const auto content = file.AsDouble(role + "strip.content_f64");
  auto keys = file.AsFloat(role + "strip.rotated_f32");
  const auto& shape = file[role + "strip.rotated_f32"].shape;  // [1, heads, tokens, head_dim]
  const auto head_dim = static_cast<int32_t>(shape[3]);
  for (int64_t r = 0; r < shape[1] * shape[2]; ++r) {
    StripRope(table.row(r % shape[2]), keys.data() + r * head_dim, 1, head_dim);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    // The writer's angles are FP32: off by up to 8e-6 radians at the largest position, 130.
    ASSERT_NEAR(keys[i], content[i], 1e-5) << "element " << i;
  }
}

constexpr double kYarn4 = 1.1386294361119891, kYarn2 = 1.0693147180559945;

INSTANTIATE_TEST_SUITE_P(
    Published, GoldenStripTest,
    ::testing::Values(GoldenCase{"llama3", "source", 1, Pairing::kHalf},
                      GoldenCase{"llama3", "target", 1, Pairing::kHalf},
                      GoldenCase{"yarn", "source", 1, Pairing::kHalf},
                      GoldenCase{"yarn", "target", kYarn4, Pairing::kHalf},
                      GoldenCase{"yarn_both", "source", kYarn4, Pairing::kHalf},
                      GoldenCase{"yarn_both", "target", kYarn2, Pairing::kHalf},
                      GoldenCase{"partial", "source", 1, Pairing::kHalf},
                      GoldenCase{"partial", "target", 1, Pairing::kHalf},
                      GoldenCase{"partial_interleaved", "source", 1, Pairing::kInterleaved},
                      GoldenCase{"partial_interleaved", "target", 1, Pairing::kInterleaved}),
    [](const auto& info) { return std::string(info.param.name) + "_" + info.param.role; });

}  // namespace
}  // namespace kvbridge::rope
