#include "core/rope/rope_table.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/rope/inv_freq.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::rope {
namespace {

RopeTable TableAt(const RopeParams& params, const std::vector<int64_t>& positions) {
  return RopeTable(params, positions);
}

RopeParams Llama(int32_t rotary_dim = 128) {
  return *MakeRopeParams(10000, rotary_dim, Pairing::kHalf, DefaultScaling{});
}

TEST(RopeTableTest, EntriesAreTheDoubleValuesRoundedOnceAtEveryPosition) {
  const RopeParams params = Llama();
  const std::vector<int64_t> positions = {0, 1, 255, 256, 257, 4097, 131071, 1000000};
  const RopeTable table(params, positions);
  for (size_t t = 0; t < positions.size(); ++t) {
    const RopeRow row = table.row(static_cast<int64_t>(t));
    for (int i = 0; i < 64; ++i) {
      const long double angle =
          static_cast<long double>(positions[t]) * static_cast<long double>(params.inv_freq[i]);
      // Half an ulp of FP32 below 1, and the angle's own error.
      EXPECT_NEAR(row.cos[i], static_cast<double>(std::cos(angle)), 3.0e-8 + 2e-10);
      EXPECT_NEAR(row.sin[i], static_cast<double>(std::sin(angle)), 3.0e-8 + 2e-10);
    }
  }
}

TEST(RopeTableTest, PositionsUpToTwoToTheThirtyOneKeepSixDigits) {
  const RopeParams params = Llama();
  const int64_t position = int64_t{1} << 31;
  const RopeTable table = TableAt(params, {position});
  for (int i = 0; i < 64; ++i) {
    const long double angle =
        static_cast<long double>(position) * static_cast<long double>(params.inv_freq[i]);
    EXPECT_NEAR(table.row(0).cos[i], static_cast<double>(std::cos(angle)), 3e-7);
  }
}

TEST(RopeTableTest, NeighbouringPositionsNeverCollide) {
  // bf16 cannot tell 257 from 256, nor FP32 angles 131,071 from its neighbour to full precision.
  for (int64_t position : {int64_t{256}, int64_t{4096}, int64_t{131070}}) {
    const RopeTable table = TableAt(Llama(), {position, position + 1});
    EXPECT_NE(table.row(0).cos[0], table.row(1).cos[0]) << position;
    EXPECT_NEAR(std::remainder(std::atan2(table.row(1).sin[0], table.row(1).cos[0]) -
                                   std::atan2(table.row(0).sin[0], table.row(0).cos[0]),
                               2 * M_PI),
                1.0, 1e-6);
  }
}

TEST(RopeTableTest, GapsRepeatsAndDescendingPositionsGiveTheSameRowsAsAlone) {
  const RopeParams params = Llama(8);
  const std::vector<int64_t> positions = {9, 0, 5, 5, 1};
  const RopeTable table(params, positions);
  ASSERT_EQ(table.tokens(), 5);
  for (size_t t = 0; t < positions.size(); ++t) {
    const RopeTable alone = TableAt(params, {positions[t]});
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(table.row(static_cast<int64_t>(t)).cos[i], alone.row(0).cos[i]);
      EXPECT_EQ(table.row(static_cast<int64_t>(t)).sin[i], alone.row(0).sin[i]);
      EXPECT_EQ(table.row(static_cast<int64_t>(t)).strip_cos[i], alone.row(0).strip_cos[i]);
    }
  }
}

TEST(RopeTableTest, StripEntriesInvertTheStoredEntriesNotTheIdealOnes) {
  RopeParams params = Llama();
  params.attention_factor = 1.347;
  const RopeTable table = TableAt(params, {4097});
  const RopeRow row = table.row(0);
  int differ = 0;
  for (int i = 0; i < 64; ++i) {
    const double determinant = double{row.cos[i]} * row.cos[i] + double{row.sin[i]} * row.sin[i];
    EXPECT_EQ(row.strip_cos[i], static_cast<float>(row.cos[i] / determinant));
    EXPECT_EQ(row.strip_sin[i], static_cast<float>(row.sin[i] / determinant));
    EXPECT_NEAR(row.strip_cos[i], row.cos[i] / (1.347 * 1.347), 1e-6);
    differ += row.strip_cos[i] != static_cast<float>(row.cos[i] / (1.347 * 1.347));
  }
  EXPECT_GT(differ, 0);
}

TEST(RopeTableTest, AgreesWithGoldenTablesFromTheSameFrequencies) {
  for (const char* name : {"llama3", "yarn", "yarn_both", "partial", "partial_interleaved"}) {
    const test::SafetensorsLite file(std::string("tests/data/golden/rope/") + name +
                                     "/tables.safetensors");
    for (const std::string role : {"source.", "target."}) {
      RopeParams params;
      params.inv_freq = file.AsDouble(role + "inv_freq");
      params.rotary_dim = 2 * static_cast<int32_t>(params.inv_freq.size());
      const auto cos = file.AsDouble(role + "gappy_cos_f64");
      const auto sin = file.AsDouble(role + "gappy_sin_f64");
      params.attention_factor = cos[0];  // position 0 comes first: the cosine is 1
      const RopeTable table(params, file.AsInt64("gappy_positions"));
      // transformers' rows are [rotary_dim]: the angles twice in a row, or each one repeated in
      // place.
      const int32_t half = params.rotary_dim / 2;
      const int32_t step = std::string(name) == "partial_interleaved" ? 2 : 1;
      for (int64_t t = 0; t < table.tokens(); ++t) {
        for (int32_t i = 0; i < half; ++i) {
          const int64_t at = t * params.rotary_dim + step * i;
          ASSERT_NEAR(table.row(t).cos[i], cos[at], 1e-7) << name << " " << role << i;
          ASSERT_NEAR(table.row(t).sin[i], sin[at], 1e-7) << name << " " << role << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbridge::rope
