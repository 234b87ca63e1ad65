#include "core/artifact/convert.h"

#include <cmath>
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "core/artifact/artifact.h"
#include "core/artifact/hf_weights.h"
#include "core/artifact/safetensors_writer.h"
#include "core/model/hf_config.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

constexpr char kPrototype[] = "tests/data/family/artifacts/prototype-small-to-large-k4-bf16";
constexpr char kLarge[] = "tests/data/family/large";

model::ModelSpec Spec(const std::string& member) {
  return model::SpecFromHfConfig(Slurp("tests/data/family/" + member + "/config.json")).value();
}

class ConvertTest : public ::testing::Test {
 protected:
  ConvertOptions Options() {
    return {.pool = pool_.get(), .source = Spec("small"), .target = Spec("large")};
  }
  TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
};

TEST_F(ConvertTest, APrototypeBecomesANativeArtifactWithTheSameWeights) {
  const std::string digest = ConvertArtifact(kPrototype, dir_ / "out", Options()).value();
  const auto native = LoadArtifact(dir_ / "out", {.pool = pool_.get()});
  ASSERT_TRUE(native.ok()) << native.status();
  EXPECT_EQ(native->format, Format::kNative);
  EXPECT_EQ(native->mapper->digest, digest);
  EXPECT_EQ(native->mapper->source.rope, Spec("small").rope);
  EXPECT_EQ(native->mapper->target.rope, Spec("large").rope);
  EXPECT_EQ(native->provenance.calibration["prototype"]["fit_config"]["top_k"], 4);
  const auto prototype =
      LoadArtifact(kPrototype, {.pool = pool_.get(), .allow_missing_rope = true}).value();
  for (int l = 0; l < 8; ++l) {
    const auto& before = prototype.mapper->values[l].weight.data;
    const auto& after = native->mapper->values[l].weight.data;
    ASSERT_EQ(before.size(), after.size());
    EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size()), 0) << "layer " << l;
  }
}

TEST_F(ConvertTest, TheSameInputGivesTheSameBytes) {
  EXPECT_EQ(ConvertArtifact(kPrototype, dir_ / "a", Options()).value(),
            ConvertArtifact(kPrototype, dir_ / "b", Options()).value());
  for (const char* file : {"manifest.json", "mapper.safetensors"}) {
    EXPECT_EQ(Slurp(dir_ / "a" / file), Slurp(dir_ / "b" / file)) << file;
  }
}

TEST_F(ConvertTest, KeyNormComesFromTheTargetsWeights) {
  ConvertOptions options = Options();
  options.key_norm_from = kLarge;
  ASSERT_TRUE(ConvertArtifact(kPrototype, dir_ / "out", options).ok());
  const auto native = LoadArtifact(dir_ / "out", {.pool = pool_.get()});
  ASSERT_TRUE(native.ok()) << native.status();
  const mapper::KeyNorm& norm = native->mapper->key_norm;
  EXPECT_EQ(norm.kind, mapper::KeyNorm::Kind::kKNorm);
  EXPECT_EQ(norm.eps, 1e-6);
  ASSERT_EQ(norm.gamma.size(), 8u);
  EXPECT_EQ(norm.gamma, ReadKeyNorm(kLarge, 8, 64)->gamma);
  EXPECT_NE(norm.gamma[0], norm.gamma[7]);
}

TEST_F(ConvertTest, AShardedModelIsReadThroughItsIndex) {
  const std::vector<float> gamma = {1, 2, 3, 4};
  for (const char* l : {"0", "1"}) {
    const std::string name = std::string("model.layers.") + l + ".self_attn.k_norm.weight";
    ASSERT_TRUE(WriteSafeTensors(dir_ / (std::string("shard-") + l + ".safetensors"),
                                 {{name, {StDType::kF32, {4}, std::as_bytes(std::span(gamma))}}},
                                 {})
                    .ok());
  }
  Spill(dir_ / "config.json", R"({"rms_norm_eps": 1e-5})");
  const auto index = [&](const std::string& second) {
    Spill(dir_ / "model.safetensors.index.json",
          R"({"weight_map":{"model.layers.0.self_attn.k_norm.weight":"shard-0.safetensors",)"
          R"("model.layers.1.self_attn.k_norm.weight":")" +
              second + "\"}}");
  };
  index("shard-1.safetensors");
  const auto norm = ReadKeyNorm(dir_.path(), 2, 4);
  ASSERT_TRUE(norm.ok()) << norm.status();
  EXPECT_EQ(norm->gamma[1], gamma);
  EXPECT_EQ(norm->eps, 1e-5);
  index("../shard-1.safetensors");
  EXPECT_EQ(ReadKeyNorm(dir_.path(), 2, 4).status().code(), absl::StatusCode::kInvalidArgument);
  index("shard-0.safetensors");
  EXPECT_EQ(ReadKeyNorm(dir_.path(), 2, 4).status().code(), absl::StatusCode::kNotFound);
  index("shard-1.safetensors");
  EXPECT_EQ(ReadKeyNorm(dir_.path(), 2, 8).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadKeyNorm(dir_.path(), 3, 4).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ConvertTest, AFailureLeavesNothingBehind) {
  ConvertOptions options = Options();
  options.source.reset();
  EXPECT_EQ(ConvertArtifact(kPrototype, dir_ / "out", options).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      ConvertArtifact("tests/data/golden/malformed/nan_weight", dir_ / "out", {.pool = pool_.get()})
          .status()
          .code(),
      absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(ConvertTest, AnInterruptedConversionLeavesNothingBehind) {
  std::stop_source stop;
  stop.request_stop();
  ConvertOptions options = Options();
  options.stop = stop.get_token();
  EXPECT_EQ(ConvertArtifact(kPrototype, dir_ / "out", options).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

// P10, through conversion: what is not finite is refused before anything is written.
TEST_F(ConvertTest, ANonFiniteTensorIsRefused) {
  model::ModelSpec spec;
  spec.geometry = {.layers = 2, .kv_heads = 1, .head_dim = 4};
  spec.rope.params = {.inv_freq = {1.0, 0.1}, .rotary_dim = 4};
  const absl::Status status = ConvertArtifact("tests/data/golden/malformed/inf_bias", dir_ / "out",
                                              {.pool = pool_.get(), .source = spec, .target = spec})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("value_bias.1"), absl::string_view::npos) << status;
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace kvbridge::artifact
