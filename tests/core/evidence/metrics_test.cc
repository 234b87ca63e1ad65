#include "core/evidence/metrics.h"

#include <cmath>
#include <fstream>
#include <vector>

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::evidence {
namespace {

constexpr char kInputs[] = "tests/data/golden/metrics/inputs.safetensors";
constexpr int kBatch = 2;

// Beside numbers the file holds NaN as a bare word, which JSON has not.
nlohmann::json Expected() {
  std::string text = test::ReadTestFile("tests/data/golden/metrics/expected.json");
  for (size_t at; (at = text.find("NaN")) != std::string::npos;) text.replace(at, 3, "null");
  return nlohmann::json::parse(text);
}

class GoldenMetricsTest : public testing::Test {
 protected:
  // KL of the last `suffix` of 7 tokens of both sequences.
  double Kl(double temperature, int suffix, bool symmetric) const {
    constexpr int kTokens = 7;
    constexpr int kWords = 50;
    double sum = 0;
    for (int row = 0; row < kBatch * kTokens; ++row) {
      if (row % kTokens < kTokens - suffix) continue;
      const auto own = std::span(reference_).subspan(row * kWords, kWords);
      const auto other = std::span(candidate_).subspan(row * kWords, kWords);
      const double forward = KlDivergence(own, other, temperature);
      sum += symmetric ? (forward + KlDivergence(other, own, temperature)) / 2 : forward;
    }
    return sum / (kBatch * suffix);
  }

  // Cosine of one layer, over both sequences: [layers, batch, heads, tokens, 16] in the file.
  double Cosine(int layer, bool causal, bool masked) const {
    const AttentionShape shape{
        .query_heads = 4, .kv_heads = 2, .head_dim = 16, .queries = 16, .keys = 19};
    double sum = 0;
    for (int sequence = 0; sequence < kBatch; ++sequence) {
      const auto part = [&](const std::vector<float>& all, size_t size) {
        return std::span(all).subspan((layer * kBatch + sequence) * size, size);
      };
      const auto output = [&](const std::string& role) {
        const std::vector<float> keys = file_.AsFloat(role + ".keys");
        const std::vector<float> values = file_.AsFloat(role + ".values");
        AttentionInput input{.queries = part(queries_, 4 * 16 * 16),
                             .keys = part(keys, 2 * 19 * 16),
                             .values = part(values, 2 * 19 * 16),
                             .causal = causal};
        if (masked) input.key_mask = std::span(mask_).subspan(sequence * 19, 19);
        return AttentionOutput(shape, input);
      };
      sum += MeanCosine(output("candidate"), output("reference"), 16);
    }
    return sum / kBatch;
  }

  std::vector<uint8_t> Mask() const {
    std::vector<uint8_t> mask;
    for (const int64_t bit : file_.AsInt64("key_padding_mask")) mask.push_back(bit != 0);
    return mask;
  }

  const nlohmann::json expected_ = Expected();
  const test::SafetensorsLite file_{kInputs};
  const std::vector<float> reference_ = file_.AsFloat("reference_logits");
  const std::vector<float> candidate_ = file_.AsFloat("candidate_logits");
  const std::vector<float> queries_ = file_.AsFloat("queries");
  const std::vector<uint8_t> mask_ = Mask();
};

TEST_F(GoldenMetricsTest, KlAgrees) {
  int compared = 0;
  for (const std::string temperature : {"0.5", "1.0", "2.0"}) {
    for (const std::string suffix : {"1", "3", "None"}) {
      for (const bool symmetric : {false, true}) {
        const std::string name = "kl temperature=" + temperature + " max_suffix_tokens=" + suffix +
                                 " symmetric=" + (symmetric ? "True" : "False");
        const double want = expected_.at(name).get<double>();
        const double got =
            Kl(std::stod(temperature), suffix == "None" ? 7 : std::stoi(suffix), symmetric);
        EXPECT_NEAR(got, want, 2e-6 * want) << name;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 18);
}

TEST_F(GoldenMetricsTest, AttentionCosineAgreesInEveryVariant) {
  for (const bool causal : {false, true}) {
    for (const bool masked : {false, true}) {
      const std::string name = std::string("attention causal=") + (causal ? "True" : "False") +
                               " mask=" + (masked ? "True" : "False");
      for (int layer = 0; layer < 3; ++layer) {
        const auto& want = expected_.at(name).at("per_layer").at(layer);
        const double got = Cosine(layer, causal, masked);
        // Its mask hides the first tokens, so that the first queries see nothing at all.
        if (want.is_null()) {
          EXPECT_TRUE(std::isnan(got)) << name;
        } else {
          EXPECT_NEAR(got, want.get<double>(), 2e-6) << name;
        }
      }
    }
  }
}

TEST(MetricsTest, ADistributionIsNoDistanceFromItselfWhateverItsOffset) {
  const std::vector<float> a = {1, 2, 3};
  const std::vector<float> shifted = {101, 102, 103};
  EXPECT_NEAR(KlDivergence(a, shifted), 0, 1e-12);
  EXPECT_GT(KlDivergence(a, std::vector<float>{3, 2, 1}), 1);
}

TEST(MetricsTest, LogitsBeyondTheRangeOfExpAreNoTrouble) {
  EXPECT_DOUBLE_EQ(NegativeLogLikelihood(std::vector<float>{2000, -2000}, 1), 4000);
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>{0, 0}, 0), std::log(2.0), 1e-15);
  EXPECT_TRUE(std::isnan(KlDivergence(std::vector<float>{1, NAN}, std::vector<float>{1, 1})));
}

TEST(MetricsTest, TheFirstOfEqualLogitsIsTheLikeliest) {
  EXPECT_EQ(Top1(std::vector<float>{1, 5, 5, 2}), 1);
}

}  // namespace
}  // namespace kvbridge::evidence
