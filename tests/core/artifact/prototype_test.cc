#include <cstring>

#include <gtest/gtest.h>

#include "core/artifact/fingerprint.h"
#include "core/artifact/prototype_format.h"
#include "core/base/strict_json.h"
#include "core/model/hf_config.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr char kGolden[] = "tests/data/golden/artifacts/";
constexpr char kFamily[] = "tests/data/family/artifacts/prototype-small-to-large-k4-bf16";

model::ModelSpec FamilySpec(const std::string& member) {
  return model::SpecFromHfConfig(Slurp("tests/data/family/" + member + "/config.json")).value();
}

class PrototypeTest : public ::testing::Test {
 protected:
  absl::StatusOr<Artifact> Look(const std::filesystem::path& dir) {
    return LoadArtifact(dir, {.pool = pool_.get(), .allow_missing_rope = true});
  }
  // A copy of a golden artifact with one manifest member changed.
  absl::Status LoadEdited(const std::string& name, const char* pointer, const Json& value) {
    const TempDir dir;
    CopyFolder(kGolden + name, dir / "a");
    Json json = Json::parse(Slurp(dir / "a/manifest.json"));
    json[Json::json_pointer(pointer)] = value;
    for (const char* role : {"source", "target"}) {
      json[std::string(role) + "_fingerprint"] =
          SignatureFingerprint(json[std::string(role) + "_signature"]).value();
    }
    Spill(dir / "a/manifest.json", json.dump());
    return Look(dir / "a").status();
  }

  TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
};

TEST_F(PrototypeTest, EveryGoldenArtifactIsAccepted) {
  int count = 0;
  for (const char* root : {"tests/data/golden/artifacts", "tests/data/golden/unmatched"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root)) {
      if (!std::filesystem::exists(entry.path() / "mapper.safetensors")) continue;
      const auto artifact = Look(entry.path());
      ASSERT_TRUE(artifact.ok()) << entry.path() << ": " << artifact.status();
      EXPECT_EQ(artifact->format, Format::kPrototype);
      EXPECT_EQ(artifact->provenance.verdict(), Verdict::kUnproven);
      EXPECT_EQ(artifact->mapper->digest.size(), 64u);
      ++count;
    }
  }
  EXPECT_EQ(count, 13);
}

TEST_F(PrototypeTest, ListsAndFitAreThoseOfTheManifest) {
  const Artifact artifact = Look(std::string(kGolden) + "main-k2-bf16").value();
  const mapper::Mapper& mapper = *artifact.mapper;
  EXPECT_EQ(mapper.keys[1].sources, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(mapper.values[1].sources, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(mapper.keys[0].weight.dtype, tensor::DType::kBf16);
  EXPECT_EQ(mapper.keys[0].weight.shape, (std::vector<int64_t>{2, 128, 32}));
  EXPECT_EQ(artifact.provenance.lambda, 0.01);
  EXPECT_EQ(artifact.provenance.lambda_convention, LambdaConvention::kRawGram);
  EXPECT_TRUE(mapper.strip_rope);
  EXPECT_EQ(mapper.source.identity.model_id, "golden/main-src");
}

TEST_F(PrototypeTest, ServingNeedsBothConfigsUnlessKeysAreMappedAsCached) {
  const auto load = [&](std::optional<model::ModelSpec> source,
                        std::optional<model::ModelSpec> target) {
    return LoadArtifact(kFamily, {.pool = pool_.get(), .source = source, .target = target});
  };
  const absl::Status no_source = load(std::nullopt, FamilySpec("large")).status();
  EXPECT_EQ(no_source.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(no_source.message().find("--source-config"), absl::string_view::npos) << no_source;
  const absl::Status no_target = load(FamilySpec("small"), std::nullopt).status();
  EXPECT_NE(no_target.message().find("--target-config"), absl::string_view::npos) << no_target;
  const auto both = load(FamilySpec("small"), FamilySpec("large"));
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->mapper->source.rope, FamilySpec("small").rope);
  EXPECT_EQ(both->mapper->target.identity.family, "qwen3");
  EXPECT_EQ(load(FamilySpec("large"), FamilySpec("large")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      LoadArtifact(std::string(kGolden) + "main-k2-position-fp32", {.pool = pool_.get()}).ok());
}

TEST_F(PrototypeTest, TheConfigsAreBoundByTheDigest) {
  const model::ModelSpec small = FamilySpec("small");
  model::ModelSpec large = FamilySpec("large");
  const auto digest = [&] {
    return LoadArtifact(kFamily, {.pool = pool_.get(), .source = small, .target = large})
        ->mapper->digest;
  };
  const std::string before = digest();
  EXPECT_EQ(digest(), before);
  large.rope.params.inv_freq[3] *= 2;
  EXPECT_NE(digest(), before);
}

TEST_F(PrototypeTest, ListsThatTheScoresContradictAreRefused) {
  const absl::Status swapped = LoadEdited("main-k2-fp32", "/selected_layers/0", {3, 0});
  EXPECT_EQ(swapped.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(swapped.message().find("selected_layers[0]"), absl::string_view::npos) << swapped;
  EXPECT_EQ(LoadEdited("main-k2-fp32", "/selected_layers/5", {3, 1}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadEdited("main-k2-fp32", "/selection_scores/2", {0.1, 0.2}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(PrototypeTest, EqualScoresGoToTheLowerLayer) {
  EXPECT_TRUE(LoadEdited("main-k2-fp32", "/selection_scores/0", {0.5, 0.1, 0.1, 0.5}).ok());
  EXPECT_FALSE(LoadEdited("main-k2-fp32", "/selection_scores/0", {0.5, 0.5, 0.5, 0.5}).ok());
}

TEST_F(PrototypeTest, DifferingTokenizersAreRefusedThoughTheFingerprintsAgree) {
  const absl::Status status =
      LoadEdited("main-k1-fp32", "/target_signature/tokenizer_hash", "another");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tokenizer_hash"), absl::string_view::npos) << status;
}

TEST_F(PrototypeTest, SlidingAttentionIsUnimplemented) {
  EXPECT_EQ(LoadEdited("main-k1-fp32", "/target_signature/attention_kind", "sliding_window").code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(PrototypeTest, AnExportedArtifactIsReadBackWithTheSameWeightsAndManifest) {
  const std::filesystem::path golden = std::string(kGolden) + "main-k2-bf16";
  const Artifact original = Look(golden).value();
  ASSERT_TRUE(ExportPrototype(dir_ / "out", original, {.pool = pool_.get()}).ok());
  const auto read = Look(dir_ / "out");
  ASSERT_TRUE(read.ok()) << read.status();
  for (int l = 0; l < 6; ++l) {
    const auto& a = original.mapper->keys[l].weight.data;
    const auto& b = read->mapper->keys[l].weight.data;
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size()), 0) << "layer " << l;
  }
  Json before = Json::parse(Slurp(golden / "manifest.json"));
  Json after = Json::parse(Slurp(dir_ / "out/manifest.json"));
  for (const char* varies : {"created_at", "paper", "weights_sha256"}) {
    before.erase(varies);
    after.erase(varies);
  }
  EXPECT_EQ(after, before);
}

TEST_F(PrototypeTest, WhatTheFormatCannotExpressIsNotExported) {
  const auto export_status = [&](const SyntheticOptions& options, auto edit) {
    const auto mapper = SyntheticMapper(options);
    edit(*mapper);
    return ExportPrototype(dir_ / "out", {.mapper = mapper}, {.pool = pool_.get()});
  };
  const auto keep = [](mapper::Mapper&) {};
  const auto expect = [&](const absl::Status& status, const char* what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << what;
    EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
  };
  expect(export_status({.support = mapper::Support::kHeadLocal}, keep), "head-local");
  expect(export_status({.key_norm = mapper::KeyNorm::Kind::kScale}, keep), "renormalisation");
  expect(export_status({.cross = true}, keep), "cross sources of layer 1");
  expect(export_status({}, keep), "different lengths");
  expect(export_status({}, [](mapper::Mapper& m) { m.values[0].sources = {1}; }), "K and V");
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace kvbridge::artifact
