// Artifacts in the layout of semantic-router pull 4009, written here as its writer does.
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "core/artifact/artifact.h"
#include "core/artifact/safetensors_writer.h"
#include "core/base/strict_json.h"
#include "core/crypto/sha256.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr int kHeads = 2;
constexpr int kDim = 8;
constexpr int kTopK = 2;
constexpr int kRow = kHeads * kDim;

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() { std::filesystem::create_directory(dir_ / "a"); }

  Json manifest_ = {{"mapper_id", "small-large-full_head-bf16-tp1-h2-sr1-tr2-b1"},
                    {"compatibility",
                     {{"source_model", "test/small"},
                      {"source_revision", "r1"},
                      {"target_model", "test/large"},
                      {"target_revision", "r2"},
                      {"variant", "full_head"},
                      {"precision", "bf16"},
                      {"source_tp", 1},
                      {"target_tp", 1},
                      {"head_order", "contiguous"},
                      {"num_kv_heads", kHeads},
                      {"head_dim", kDim}}},
                    {"topk", kTopK},
                    {"ridge_alpha", 0.01},
                    {"centered_inputs", true},
                    {"rope_stripped_on_keys", true},
                    {"source_layers_per_target",
                     {{"k", {{"0", {0, 1}}, {"1", {1, 0}}, {"2", {1, 2}}}},
                      {"v", {{"0", {0, 2}}, {"1", {1, 0}}, {"2", {2, 1}}}}}},
                    {"calibration", {{"corpus", "synthetic"}}},
                    {"evaluation_report", nullptr},
                    {"schema_version", 1}};

  // Writes the folder; weight [f, o] of target.{l}.k is 1000 l + f + o / 100.
  void Write(bool per_head = false) {
    std::map<std::string, std::vector<float>> values;
    std::map<std::string, StTensor> tensors;
    const int features = kTopK * (per_head ? kDim : kRow);
    for (int l = 0; l < 3; ++l) {
      for (const char* channel : {"k", "v"}) {
        const std::string prefix = "target." + std::to_string(l) + "." + channel;
        std::vector<float>& weight = values[prefix + ".W"];
        for (int i = 0; i < features * kRow; ++i) {
          weight.push_back(1000.0f * l + i / kRow + (i % kRow) / 100.0f);
        }
        values[prefix + ".b"] = std::vector<float>(kRow, 0.5f);
        using Shape = std::vector<int64_t>;
        tensors[prefix + ".W"].shape =
            per_head ? Shape{kHeads, features, kDim} : Shape{features, kRow};
        tensors[prefix + ".b"].shape = per_head ? Shape{kHeads, kDim} : Shape{kRow};
      }
    }
    for (auto& [name, tensor] : tensors) tensor.data = std::as_bytes(std::span(values[name]));
    ASSERT_TRUE(WriteSafeTensors(dir_ / "a/weights.safetensors", tensors, {}).ok());
    Spill(dir_ / "a/manifest.json", manifest_.dump(2) + "\n");
    WriteSums();
  }
  std::string SumLine(const std::string& name) {
    return crypto::Sha256Hex(Slurp(dir_ / ("a/" + name))).value() + "  " + name + "\n";
  }
  void WriteSums() {
    Spill(dir_ / "a/SHA256SUMS", SumLine("manifest.json") + SumLine("weights.safetensors"));
  }
  absl::StatusOr<Artifact> Load() {
    return LoadArtifact(dir_ / "a", {.pool = pool_.get(),
                                     .source = SyntheticSpec("test/small", 4, 0.1),
                                     .target = SyntheticSpec("test/large", 3, 0.03)});
  }
  void ExpectRefused(absl::StatusCode code, const std::string& message) {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(message), absl::string_view::npos) << status;
  }
  float At(const mapper::TensorRef& tensor, int h, int f, int d) {
    float value;
    const int64_t index = (h * tensor.shape[1] + f) * tensor.shape[2] + d;
    std::memcpy(&value, tensor.data.data() + index * 4, 4);
    return value;
  }

  TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
};

TEST_F(RouterTest, FullHeadWeightsAreTransposedToHeads) {
  Write();
  const auto artifact = Load();
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(artifact->format, Format::kRouter);
  const mapper::Mapper& mapper = *artifact->mapper;
  EXPECT_EQ(mapper.keys[2].sources, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(mapper.values[0].sources, (std::vector<int32_t>{0, 2}));
  const mapper::TensorRef& weight = mapper.keys[1].weight;
  EXPECT_EQ(weight.shape, (std::vector<int64_t>{kHeads, kTopK * kRow, kDim}));
  for (const auto& [h, f, d] : {std::tuple(0, 0, 0), std::tuple(1, 31, 7), std::tuple(1, 3, 2)}) {
    EXPECT_EQ(At(weight, h, f, d), 1000.0f + f + (h * kDim + d) / 100.0f);
  }
  EXPECT_EQ(mapper.source.geometry.layers, 4);
  EXPECT_EQ(mapper.source.geometry.dtype, tensor::DType::kBf16);
  EXPECT_EQ(mapper.target.identity.revision, "r2");
  EXPECT_EQ(artifact->provenance.lambda_convention, LambdaConvention::kRawGram);
}

TEST_F(RouterTest, PerHeadWeightsAreHeadLocal) {
  manifest_["compatibility"]["variant"] = "per_head";
  Write(/*per_head=*/true);
  const auto artifact = Load();
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ(artifact->mapper->keys[0].support, mapper::Support::kHeadLocal);
  EXPECT_EQ(artifact->mapper->keys[0].weight.shape,
            (std::vector<int64_t>{kHeads, kTopK * kDim, kDim}));
}

TEST_F(RouterTest, WithoutConfigsItCanBeLookedAtButNotServed) {
  Write();
  EXPECT_EQ(LoadArtifact(dir_ / "a", {.pool = pool_.get()}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto look = LoadArtifact(dir_ / "a", {.pool = pool_.get(), .allow_missing_rope = true});
  ASSERT_TRUE(look.ok()) << look.status();
  EXPECT_EQ(look->mapper->source.geometry.layers, 3);
}

// B61: the manifest was not covered, and the sums were trusted to be complete.
TEST_F(RouterTest, EveryWayAroundTheSumsIsRefused) {
  Write();
  const std::string sums = Slurp(dir_ / "a/SHA256SUMS");

  manifest_["ridge_alpha"] = 0.5;
  Spill(dir_ / "a/manifest.json", manifest_.dump(2));
  ExpectRefused(absl::StatusCode::kDataLoss, "manifest.json: expected SHA-256");

  Write();
  const auto with_sums = [&](const std::string& text, const char* message) {
    Spill(dir_ / "a/SHA256SUMS", text);
    ExpectRefused(absl::StatusCode::kInvalidArgument, message);
  };
  const std::string manifest_line = SumLine("manifest.json");
  const std::string weights_line = SumLine("weights.safetensors");
  with_sums("", "no line for manifest.json");
  with_sums(manifest_line, "no line for weights.safetensors");
  with_sums(weights_line, "no line for manifest.json");
  with_sums(manifest_line + weights_line + weights_line, "SHA256SUMS: expected one line");
  with_sums(manifest_line + weights_line + std::string(64, '0') + "  ../x\n", "../x");
  with_sums(manifest_line + weights_line + "rubbish\n", "rubbish");
  std::string not_hex = manifest_line;
  not_hex[0] = 'X';
  with_sums(not_hex + weights_line, "lower-case hex");

  std::filesystem::remove(dir_ / "a/SHA256SUMS");
  ExpectRefused(absl::StatusCode::kNotFound, "SHA256SUMS");
}

TEST_F(RouterTest, UnlistedFilesAreRefused) {
  Write();
  Spill(dir_ / "a/report.json", "{}");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "report.json");
}

TEST_F(RouterTest, ContradictionsAreNamed) {
  struct Edit {
    const char* pointer;
    Json value;
    absl::StatusCode code;
    const char* message;
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  const Edit edits[] = {
      {"/compatibility/source_tp", 2, unimplemented, "source_tp"},
      {"/compatibility/head_order", "other", unimplemented, "head_order"},
      {"/compatibility/variant", "mlp", unimplemented, "variant"},
      {"/compatibility/precision", "int8", invalid, "int8"},
      {"/compatibility/num_kv_heads", 4, invalid, "source config"},
      {"/compatibility/extra", 1, invalid, "compatibility.extra"},
      {"/rope_stripped_on_keys", false, unimplemented, "rope_stripped_on_keys"},
      {"/topk", 3, invalid, "source_layers_per_target.k.0"},
      {"/source_layers_per_target/v/0", {1, 1}, invalid, "source_layers_per_target.v.0"},
      {"/source_layers_per_target/v/0", {0, 9}, invalid, "source config"},
      {"/source_layers_per_target/v/3", {0, 1}, invalid, "the same target layers"},
      {"/source_layers_per_target/k/x", {0, 1}, invalid, "source_layers_per_target.k"},
      {"/schema_version", 2, invalid, "schema_version"},
      {"/unknown", 1, invalid, "manifest.unknown"},
  };
  const Json good = manifest_;
  for (const Edit& edit : edits) {
    manifest_ = good;
    manifest_[Json::json_pointer(edit.pointer)] = edit.value;
    Write();
    SCOPED_TRACE(edit.pointer);
    ExpectRefused(edit.code, edit.message);
  }
}

}  // namespace
}  // namespace kvbridge::artifact
