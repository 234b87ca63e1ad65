#include "core/artifact/reweigh.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "core/artifact/convert.h"
#include "core/artifact/safetensors_writer.h"
#include "core/artifact/weights.h"
#include "core/model/hf_config.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

constexpr char kPrototype[] = "tests/data/family/artifacts/prototype-small-to-large-k4-bf16";

model::ModelSpec Spec(const std::string& member) {
  return model::SpecFromHfConfig(Slurp("tests/data/family/" + member + "/config.json")).value();
}

class ReweighTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ConvertOptions options = {
        .pool = pool_.get(), .source = Spec("small"), .target = Spec("large")};
    digest_ = ConvertArtifact(kPrototype, dir_ / "in", options).value();
    before_ = LoadArtifact(dir_ / "in", {.pool = pool_.get()}).value();
    tensors_ = WeightTensors(*before_.mapper).value();
  }
  absl::StatusOr<std::string> Reweigh(const base::Json& record = base::Json::object()) {
    EXPECT_TRUE(WriteSafeTensors(dir_ / "w", tensors_, {}).ok());
    return ReweighArtifact(dir_ / "in", dir_ / "w", dir_ / "out",
                           {.pool = pool_.get(), .record = record});
  }
  void ExpectRefused(const std::string& what) {
    const absl::Status status = Reweigh().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
    EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
  }
  TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
  std::string digest_;
  Artifact before_;
  std::map<std::string, StTensor> tensors_;
};

TEST_F(ReweighTest, TheMapIsTheSameWithTheNewWeights) {
  const std::vector<std::byte> zeros(tensors_.at("value_bias.3").data.size());
  tensors_.at("value_bias.3").data = zeros;
  const base::Json record = {{"by", "me"}};
  EXPECT_NE(Reweigh(record).value(), digest_);
  const Artifact after = LoadArtifact(dir_ / "out", {.pool = pool_.get()}).value();
  EXPECT_EQ(after.provenance.calibration["refined"], record);
  EXPECT_EQ(after.provenance.calibration["prototype"], before_.provenance.calibration["prototype"]);
  EXPECT_EQ(after.provenance.verdict(), Verdict::kUnproven);
  EXPECT_EQ(after.mapper->keys[5].sources, before_.mapper->keys[5].sources);
  EXPECT_TRUE(std::ranges::equal(after.mapper->values[3].bias.data, zeros));
  EXPECT_TRUE(
      std::ranges::equal(after.mapper->keys[3].bias.data, before_.mapper->keys[3].bias.data));
}

TEST_F(ReweighTest, AMissingTensorIsNamed) {
  tensors_.erase("value_bias.3");
  ExpectRefused("value_bias.3");
}

TEST_F(ReweighTest, AnotherShapeIsNamed) {
  StTensor& tensor = tensors_.at("key_weight.2");
  std::swap(tensor.shape[0], tensor.shape[2]);
  ExpectRefused("key_weight.2");
}

TEST_F(ReweighTest, ATensorTooManyIsNamed) {
  tensors_["key_norm.0"] = tensors_.at("value_bias.3");
  ExpectRefused("key_norm.0");
}

TEST_F(ReweighTest, WhatIsNotFiniteIsNamed) {
  const std::vector<std::byte> ones(tensors_.at("value_bias.3").data.size(), std::byte{0xff});
  tensors_.at("value_bias.3").data = ones;
  ExpectRefused("value_bias.3");
}

TEST_F(ReweighTest, AnotherFormatIsRefused) {
  const absl::Status status =
      ReweighArtifact(kPrototype, dir_ / "w", dir_ / "out", {.pool = pool_.get()}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(std::filesystem::exists(dir_ / "out"));
}

}  // namespace
}  // namespace kvbridge::artifact
