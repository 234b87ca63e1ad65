#include "core/evidence/sequence_scores.h"

#include <cmath>
#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "core/artifact/safetensors_writer.h"
#include "core/evidence/metrics.h"

namespace kvbridge::evidence {
namespace {

using artifact::StDType;
using artifact::StTensor;

class ScoreLogitsTest : public testing::Test {
 protected:
  void SetUp() override {
    labels_ = {1, 4, 0};
    AddFloats("logits.own", {3, 5});
    AddFloats("logits.mapped", {3, 5});
    AddFloats("logits.source", {3, 7});
    tensors_["labels"] = {StDType::kI64, {3}, std::as_bytes(std::span(labels_))};
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::vector<float>& AddFloats(const std::string& name, std::vector<int64_t> shape) {
    int64_t size = 1;
    for (const int64_t dim : shape) size *= dim;
    std::vector<float>& values = values_[name];
    values.resize(size);
    for (float& value : values) value = static_cast<float>(random_() % 2001) / 500.0f - 2;
    tensors_[name] = {StDType::kF32, std::move(shape), std::as_bytes(std::span(values))};
    return values;
  }

  absl::StatusOr<SequenceScores> Score() {
    EXPECT_TRUE(artifact::WriteSafeTensors(path_, tensors_, metadata_).ok());
    return ScoreLogits(path_, pool_.get());
  }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".safetensors");
  std::mt19937 random_{11};
  std::vector<int64_t> labels_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, StTensor> tensors_;
  std::map<std::string, std::string> metadata_ = {{"format", "kvbridge-logits"},
                                                  {"schema", "1"},
                                                  {"domain", "general"},
                                                  {"sequence", "7"},
                                                  {"prefix_tokens", "383"}};
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
};

TEST_F(ScoreLogitsTest, MeansOverTokens) {
  const SequenceScores scores = Score().value();
  EXPECT_EQ(scores.domain, "general");
  EXPECT_EQ(scores.sequence, 7);
  EXPECT_EQ(scores.prefix_tokens, 383);
  EXPECT_EQ(scores.tokens, 3);
  double kl = 0;
  double nll = 0;
  for (int i = 0; i < 3; ++i) {
    const auto own = std::span<const float>(values_["logits.own"]).subspan(i * 5, 5);
    const auto mapped = std::span<const float>(values_["logits.mapped"]).subspan(i * 5, 5);
    kl += KlDivergence(own, mapped) / 3;
    nll += NegativeLogLikelihood(mapped, labels_[i]) / 3;
  }
  EXPECT_NEAR(*scores.variants.at("mapped").kl, kl, 1e-12);
  EXPECT_NEAR(scores.variants.at("mapped").nll, nll, 1e-12);
  EXPECT_EQ(scores.variants.at("own").kl, 0);
  EXPECT_EQ(scores.variants.at("own").top1, 1);
}

TEST_F(ScoreLogitsTest, AnotherVocabularyHasNoKl) {
  const SequenceScores scores = Score().value();
  EXPECT_EQ(scores.variants.at("source").kl, std::nullopt);
  EXPECT_GT(scores.variants.at("source").nll, 0);
}

TEST_F(ScoreLogitsTest, AttentionOutputsAreComparedByLayer) {
  AddFloats("attention.queries", {2, 4, 3, 8});
  for (const std::string variant : {"own", "mapped"}) {
    AddFloats("attention.keys." + variant, {2, 2, 6, 8});
    AddFloats("attention.values." + variant, {2, 2, 6, 8});
  }
  // Layer 1 is own's, to the bit.
  for (const std::string part : {"attention.keys.", "attention.values."}) {
    std::copy_n(values_[part + "own"].begin() + 96, 96, values_[part + "mapped"].begin() + 96);
  }
  const SequenceScores scores = Score().value();
  const std::vector<double>& cosine = scores.layer_cosine.at("mapped");
  ASSERT_EQ(cosine.size(), 2u);
  EXPECT_LT(cosine[0], 0.9);
  EXPECT_NEAR(cosine[1], 1, 1e-6);
  EXPECT_EQ(SequenceScoresFromJson(ToJson(scores), "scores").value(), scores);
}

TEST_F(ScoreLogitsTest, ALogitThatIsNotFiniteIsNamed) {
  values_["logits.mapped"][8] = NAN;
  EXPECT_EQ(Score().status().message(), "logits.mapped: expected finite numbers, got nan");
}

TEST_F(ScoreLogitsTest, WhatDoesNotFitIsRefused) {
  const auto refused = [this](const char* says) {
    const absl::Status status = Score().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(says), absl::string_view::npos) << status;
  };
  labels_[1] = 5;
  refused("labels: expected 0 to 4 (logits.own), got 5");
  labels_[1] = 4;
  AddFloats("logits.mapped", {2, 5});
  refused("logits.mapped: expected shape [3, vocabulary], got [2, 5]");
  AddFloats("logits.mapped", {3, 5});
  AddFloats("logits.<script>", {3, 5});
  refused("variant: expected 1 to 64 of a-z");
  tensors_.erase("logits.<script>");
  metadata_["domain"] = "a\nb";
  refused("metadata domain");
  metadata_["domain"] = "general";
  metadata_["prefix_tokens"] = "-1";
  refused("metadata prefix_tokens");
  metadata_["prefix_tokens"] = "383";
  tensors_.erase("logits.own");
  refused("logits.own");
}

TEST_F(ScoreLogitsTest, AttentionOfAnotherShapeIsRefused) {
  AddFloats("attention.queries", {2, 3, 3, 8});  // three query heads over two kv heads
  AddFloats("attention.keys.own", {2, 2, 6, 8});
  AddFloats("attention.values.own", {2, 2, 6, 8});
  EXPECT_EQ(Score().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvbridge::evidence
