#include "core/artifact/artifact.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/base/strict_json.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

using Kind = mapper::KeyNorm::Kind;

class ArtifactTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Save(const mapper::Mapper& mapper, const std::string& name = "a",
                                   bool overwrite = false) {
    return SaveArtifact(dir_ / name, mapper, {.lambda = 0.01},
                        {.pool = pool_.get(), .overwrite = overwrite});
  }
  absl::StatusOr<Artifact> Load(const std::string& name = "a") {
    return LoadArtifact(dir_ / name, {.pool = pool_.get()});
  }
  std::string Manifest(const std::string& name = "a") {
    return Slurp(dir_ / (name + "/manifest.json"));
  }
  std::string Weights(const std::string& name = "a") {
    return Slurp(dir_ / (name + "/mapper.safetensors"));
  }

  TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
};

void ExpectSameTensor(const mapper::TensorRef& a, const mapper::TensorRef& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(a.shape, b.shape);
  ASSERT_EQ(a.data.size(), b.data.size());
  EXPECT_EQ(std::memcmp(a.data.data(), b.data.data(), a.data.size()), 0);
}

TEST_F(ArtifactTest, EveryKindOfMapperSurvivesSaveAndLoad) {
  int index = 0;
  for (const auto support : {mapper::Support::kFull, mapper::Support::kHeadLocal}) {
    for (const auto dtype : {tensor::DType::kF32, tensor::DType::kBf16}) {
      for (const auto kind : {Kind::kNone, Kind::kKNorm, Kind::kScale}) {
        const auto mapper = SyntheticMapper(
            {.cross = kind == Kind::kKNorm, .support = support, .dtype = dtype, .key_norm = kind});
        const std::string name = std::to_string(index++);
        const std::string digest = Save(*mapper, name).value();
        const auto loaded = Load(name);
        ASSERT_TRUE(loaded.ok()) << loaded.status();
        const mapper::Mapper& read = *loaded->mapper;
        EXPECT_EQ(loaded->format, Format::kNative);
        EXPECT_EQ(read.digest, digest);
        EXPECT_EQ(read.source, mapper->source);
        EXPECT_EQ(read.target, mapper->target);
        EXPECT_EQ(read.key_norm.gamma, mapper->key_norm.gamma);
        EXPECT_EQ(read.key_norm.key_scale, mapper->key_norm.key_scale);
        EXPECT_EQ(read.key_norm.value_scale, mapper->key_norm.value_scale);
        for (int l = 0; l < 3; ++l) {
          for (const auto component : kv::kComponents) {
            EXPECT_EQ(read.layer(l, component).planes(component),
                      mapper->layer(l, component).planes(component));
            EXPECT_EQ(read.layer(l, component).support, support);
            ExpectSameTensor(read.layer(l, component).weight, mapper->layer(l, component).weight);
            ExpectSameTensor(read.layer(l, component).bias, mapper->layer(l, component).bias);
          }
        }
      }
    }
  }
}

TEST_F(ArtifactTest, NetworksSurviveSaveAndLoad) {
  struct Case {
    mapper::Support support;
    std::vector<int32_t> hidden;
  };
  for (const Case& c : {Case{mapper::Support::kFull, {5}}, Case{mapper::Support::kHeadLocal, {3}},
                        Case{mapper::Support::kMlp, {7, 4}}}) {
    const auto mapper = SyntheticMapper({.support = c.support, .hidden = c.hidden});
    const std::string name = mapper::Describe(mapper->keys[0]);
    ASSERT_TRUE(Save(*mapper, name).ok());
    const auto loaded = Load(name);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    for (int l = 0; l < 3; ++l) {
      const mapper::LayerMap& read = loaded->mapper->values[l];
      const mapper::LayerMap& written = mapper->values[l];
      EXPECT_EQ(mapper::Describe(read), name);
      EXPECT_EQ(read.weight.shape, written.weight.shape);
      ExpectSameTensor(read.out, written.out);
      ASSERT_EQ(read.hidden.size(), c.hidden.size());
      for (size_t i = 0; i < c.hidden.size(); ++i) {
        ExpectSameTensor(read.hidden[i].weight, written.hidden[i].weight);
        ExpectSameTensor(read.hidden[i].bias, written.hidden[i].bias);
      }
    }
  }
}

// A width that the file does not back is found before anything is made of it.
TEST_F(ArtifactTest, ANetworkIsWhatTheManifestSays) {
  const auto mapper = SyntheticMapper({.hidden = {5}});
  mapper->keys[1].hidden[0].bias.shape = {4};
  const absl::Status status = Save(*mapper).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("keys[1].hidden[0].weight.shape: expected [32, 4], got [32, 5]"),
            absl::string_view::npos)
      << status;
}

// P10: two saves of one mapper differed in bytes.
TEST_F(ArtifactTest, TheSameMapperGivesTheSameBytes) {
  EXPECT_EQ(Save(*SyntheticMapper(), "a").value(), Save(*SyntheticMapper(), "b").value());
  EXPECT_EQ(Manifest("a"), Manifest("b"));
  EXPECT_EQ(Weights("a"), Weights("b"));
}

// P10: save wrote infinities and then refused to load them.
TEST_F(ArtifactTest, NonFiniteWeightsAreRefusedBeforeAnythingIsWritten) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const auto mapper = SyntheticMapper();
    std::memcpy(const_cast<std::byte*>(mapper->values[1].bias.data.data()) + 4, &bad, 4);
    const absl::Status status = Save(*mapper).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("value_bias.1"), absl::string_view::npos) << status;
    EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  }
}

// P10: an interrupted overwrite destroyed the old artifact.
TEST_F(ArtifactTest, AFailedOverwriteLeavesTheOldArtifactAsItWas) {
  const std::string digest = Save(*SyntheticMapper()).value();
  const auto broken = SyntheticMapper({.seed = 2});
  broken->keys[0].sources = {7};
  EXPECT_EQ(Save(*broken, "a", true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Load()->mapper->digest, digest);
}

TEST_F(ArtifactTest, OverwritingNeedsToBeAskedFor) {
  const std::string old = Save(*SyntheticMapper()).value();
  EXPECT_EQ(Save(*SyntheticMapper({.seed = 2})).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Load()->mapper->digest, old);
  const std::string replaced = Save(*SyntheticMapper({.seed = 2}), "a", true).value();
  EXPECT_NE(replaced, old);
  EXPECT_EQ(Load()->mapper->digest, replaced);
}

TEST_F(ArtifactTest, AFlippedByteAnywhereInTheWeightsIsDataLoss) {
  ASSERT_TRUE(Save(*SyntheticMapper()).ok());
  const std::string good = Weights();
  for (const size_t at : {size_t{0}, size_t{20}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] ^= 1;
    Spill(dir_ / "a/mapper.safetensors", bad);
    EXPECT_EQ(Load().status().code(), absl::StatusCode::kDataLoss) << "byte " << at;
  }
  Spill(dir_ / "a/mapper.safetensors", good + "x");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kDataLoss);
}

// P4, B61: nothing bound the manifest to the weights.
TEST_F(ArtifactTest, EditingTheManifestAloneIsDataLoss) {
  ASSERT_TRUE(Save(*SyntheticMapper()).ok());
  const base::Json good = base::Json::parse(Manifest());
  const std::pair<const char*, base::Json> edits[] = {
      {"/layers/1/key/sources", {1, 0}},
      {"/source/identity/revision", "r2"},
      {"/target/identity/tokenizer_sha256", "other"},
      {"/target/rope/params/attention_factor", 1.25},
      {"/strip_rope", false},
      {"/fit/lambda", 0.5},
      {"/evidence",
       {{"verdict", "PASS"}, {"kl_nats", 0.1}, {"gap_recovered", 0.9}, {"provenance", "trust me"}}},
  };
  for (const auto& [pointer, value] : edits) {
    base::Json bad = good;
    bad[base::Json::json_pointer(pointer)] = value;
    Spill(dir_ / "a/manifest.json", bad.dump());
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << pointer << ": " << status;
  }
}

TEST_F(ArtifactTest, WeightsOfAnotherArtifactAreDataLoss) {
  ASSERT_TRUE(Save(*SyntheticMapper(), "a").ok());
  ASSERT_TRUE(Save(*SyntheticMapper({.seed = 2}), "b").ok());
  Spill(dir_ / "a/mapper.safetensors", Weights("b"));
  EXPECT_EQ(Load("a").status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ArtifactTest, MissingAndUnlistedFilesAreNamed) {
  EXPECT_EQ(Load("nowhere").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Save(*SyntheticMapper()).ok());
  Spill(dir_ / "a/extra.bin", "x");
  const absl::Status extra = Load().status();
  EXPECT_EQ(extra.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(extra.message().find("extra.bin"), absl::string_view::npos) << extra;
  std::filesystem::remove(dir_ / "a/extra.bin");
  std::filesystem::remove(dir_ / "a/mapper.safetensors");
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ArtifactTest, ConfigsGivenBesideANativeArtifactMustAgree) {
  const auto mapper = SyntheticMapper();
  ASSERT_TRUE(Save(*mapper).ok());
  LoadOptions options{.pool = pool_.get(), .source = mapper->source, .target = mapper->target};
  EXPECT_TRUE(LoadArtifact(dir_ / "a", options).ok());
  options.target->rope.params.inv_freq[1] *= 1.5;
  const absl::Status rope = LoadArtifact(dir_ / "a", options).status();
  EXPECT_EQ(rope.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(rope.message().find("target config: layer 0"), absl::string_view::npos) << rope;
  options.target = mapper->target;
  options.source->geometry.kv_heads = 4;
  EXPECT_EQ(LoadArtifact(dir_ / "a", options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvbridge::artifact
