// Calibration shards of tests/data/golden, fitted with the Python prototype's settings: its lists
// and its weights, and the right ones where it is wrong or refuses.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/artifact/safetensors.h"
#include "core/base/file.h"
#include "core/base/strict_json.h"
#include "core/fit/accumulate.h"
#include "core/fit/moments_file.h"
#include "core/fit/solve.h"
#include "core/model/hf_config.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/fit/test_shards.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;
using artifact::SafeTensors;
using artifact::TempDir;
using base::Json;

constexpr double kTolerance = 1e-4;  // relative Frobenius
const fs::path kGolden = "tests/data/golden";

struct Case {
  const char* name;
  fs::path shards;
  int32_t k = 1;
  double lambda = 0.01;
  int64_t token_stride = 1;
  bool strip_rope = true;
  fs::path configs;  // folder of source_config.json and target_config.json
};

class GoldenFit {
 public:
  explicit GoldenFit(const Case& c) {
    AccumulateOptions accumulate;
    accumulate.strip_rope = c.strip_rope;
    accumulate.folder.held_out = 0;
    accumulate.folder.shard.token_stride = c.token_stride;
    if (!c.configs.empty()) {
      accumulate.folder.shard.declared =
          SpecPair{Spec(c.configs / "source_config.json"), Spec(c.configs / "target_config.json")};
    }
    auto pool = *base::WorkerPool::Create({.threads = 2});
    const fs::path out = dir_ / "moments";
    auto job = Accumulator::Create(kGolden / c.shards, out, accumulate, pool.get());
    if (job.ok()) status_ = (*job)->Run({}, nullptr);
    if (!job.ok()) status_ = job.status();
    if (!status_.ok()) return;
    auto file = ReadMoments(out);
    SolveOptions options = PrototypeOptions(c.k);
    options.lambda->value = c.lambda;
    solution_ = Solve(file->moments, options);
    status_ = solution_.status();
  }

  const absl::Status& status() const { return status_; }
  const mapper::Mapper& mapper() const { return solution_->mapper; }
  const Json& record() const { return solution_->provenance.calibration; }

  std::vector<std::vector<int32_t>> lists() const {
    std::vector<std::vector<int32_t>> lists;
    for (const mapper::LayerMap& layer : mapper().keys) lists.push_back(layer.sources);
    return lists;
  }

  // The shards hold two layers of one head of the models that the configs are of.
  static model::ModelSpec Spec(const fs::path& path) {
    model::ModelSpec spec = *model::SpecFromHfConfig(*base::ReadFile(kGolden / path, 1 << 20));
    spec.geometry.layers = 2;
    spec.geometry.kv_heads = 1;
    return spec;
  }

 private:
  TempDir dir_;
  absl::Status status_;
  absl::StatusOr<Solution> solution_;
};

// The largest relative Frobenius distance of a weight or bias to the same in `file`.
double Distance(const mapper::Mapper& mapper, const fs::path& file) {
  const auto mapped = *base::MappedFile::Open(kGolden / file);
  const SafeTensors golden = *SafeTensors::Parse(mapped->bytes(), file.string());
  double worst = 0;
  const auto compare = [&](const std::string& name, const mapper::TensorRef& ours) {
    const artifact::StTensor& theirs = **golden.Find(name);
    EXPECT_EQ(ours.shape, theirs.shape) << name;
    if (ours.data.size() != theirs.data.size()) return;
    double difference = 0, size = 0;
    for (size_t i = 0; i < ours.data.size(); i += sizeof(float)) {
      float a, b;
      std::memcpy(&a, ours.data.data() + i, sizeof(float));
      std::memcpy(&b, theirs.data.data() + i, sizeof(float));
      difference += double(a - b) * double(a - b);
      size += double(b) * double(b);
    }
    worst = std::max(worst, std::sqrt(difference / size));
  };
  for (size_t l = 0; l < mapper.keys.size(); ++l) {
    const std::string layer = std::to_string(l);
    compare("key_weight." + layer, mapper.keys[l].weight);
    compare("key_bias." + layer, mapper.keys[l].bias);
    compare("value_weight." + layer, mapper.values[l].weight);
    compare("value_bias." + layer, mapper.values[l].bias);
  }
  return worst;
}

Json ManifestOf(const fs::path& artifact) {
  return *base::ParseStrictJson(*base::ReadFile(kGolden / artifact / "manifest.json", 1 << 20),
                                "manifest");
}

class PrototypeParityTest : public ::testing::TestWithParam<Case> {};

TEST_P(PrototypeParityTest, SameListsScoresAndWeights) {
  const Case& c = GetParam();
  const GoldenFit fit(c);
  ASSERT_TRUE(fit.status().ok()) << fit.status();
  const fs::path artifact = fs::path("artifacts") / c.name;
  const Json manifest = ManifestOf(artifact);
  EXPECT_EQ(Json(fit.lists()), manifest["selected_layers"]);
  EXPECT_LE(Distance(fit.mapper(), artifact / "mapper.safetensors"), kTolerance);
  for (size_t l = 0; l < fit.mapper().keys.size(); ++l) {
    const Json& layer = fit.record()["layers"][l];
    EXPECT_NEAR(layer["key"]["r2_in_sample"], manifest["fit_key_r2"][l], 1e-5);
    EXPECT_NEAR(layer["value"]["r2_in_sample"], manifest["fit_value_r2"][l], 1e-5);
    for (size_t j = 0; j < manifest["selection_scores"][l].size(); ++j) {
      const double score = (fit.record()["probe_scores"]["key"][l][j].get<double>() +
                            fit.record()["probe_scores"]["value"][l][j].get<double>()) /
                           2;
      EXPECT_NEAR(score, manifest["selection_scores"][l][j], 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Golden, PrototypeParityTest,
    ::testing::Values(
        Case{.name = "main-k1-fp32", .shards = "calib/main"},
        Case{.name = "main-k2-fp32", .shards = "calib/main", .k = 2},
        Case{.name = "main-k4-fp32", .shards = "calib/main", .k = 4},
        Case{.name = "main-k2-accf32-fp32", .shards = "calib/main", .k = 2},
        Case{.name = "main-k2-stride3-fp32", .shards = "calib/main", .k = 2, .token_stride = 3},
        Case{.name = "main-k2-position-fp32", .shards = "calib/main", .k = 2, .strip_rope = false},
        Case{.name = "interleaved-k2-fp32", .shards = "calib/interleaved", .k = 2, .lambda = 0.5}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// Where the prototype's inverse rotation is wrong: an attention factor, part of a head.
class RopeFitTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RopeFitTest, WeightsAreTheRightOnes) {
  const fs::path folder = fs::path("rope") / GetParam();
  const GoldenFit fit({.name = GetParam(), .shards = folder / "calib", .configs = folder});
  ASSERT_TRUE(fit.status().ok()) << fit.status();
  EXPECT_LE(Distance(fit.mapper(), folder / "right_weights.safetensors"), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Golden, RopeFitTest, ::testing::Values("yarn", "llama3", "partial"),
                         [](const auto& info) { return std::string(info.param); });

// Golden cases without shards: random rows, turned by the golden tables, and targets that the
// golden weights make of them. A rotation that is not the tables' leaves other weights.
class TableFitTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kRows = 16;  // of a shard: positions 0, 4, ..., 60
  static constexpr int64_t kShards = 40;

  struct Golden {
    explicit Golden(const fs::path& file)
        : mapped(*base::MappedFile::Open(kGolden / file)),
          tensors(*SafeTensors::Parse(mapped->bytes(), file.string())) {}
    const float* floats(const std::string& name) const {
      return reinterpret_cast<const float*>((*tensors.Find(name))->data.data());
    }
    std::shared_ptr<const base::MappedFile> mapped;
    SafeTensors tensors;
  };

  // Keys [layer, row, dim] at the shard's positions: as cached, from as they are without rotation.
  static void Rotate(const model::ModelSpec& spec, const std::string& role, const Golden& tables,
                     float* keys) {
    const int64_t dim = spec.geometry.head_dim, half = spec.rope.params.rotary_dim / 2;
    const bool interleaved = spec.rope.params.pairing == rope::Pairing::kInterleaved;
    const float* cos = tables.floats(role + ".cos");
    const float* sin = tables.floats(role + ".sin");
    for (int64_t row = 0; row < spec.geometry.layers * kRows; ++row) {
      const int64_t at = row % kRows * 4 * 2 * half;  // of the tables, which name every dim
      for (int64_t i = 0; i < half; ++i) {
        const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
        float& a = keys[row * dim + first];
        float& b = keys[row * dim + second];
        const float c = cos[at + first], s = sin[at + first], x = a, y = b;
        a = x * c - y * s;
        b = y * c + x * s;
      }
    }
  }

  // Target layer l of source layer l, before rotations.
  static void MakeTargets(const Golden& weights, int64_t layers, int64_t dim, ShardFile& shard) {
    for (const std::string component : {"key", "value"}) {
      const float* source = shard.floats("source." + component + "s");
      float* target = shard.floats("target." + component + "s");
      for (int64_t row = 0; row < layers * kRows; ++row) {
        const std::string layer = std::to_string(row / kRows);
        const float* w = weights.floats(component + "_weight." + layer);
        const float* bias = weights.floats(component + "_bias." + layer);
        for (int64_t out = 0; out < dim; ++out) {
          double sum = bias[out];
          for (int64_t in = 0; in < dim; ++in) sum += source[row * dim + in] * w[in * dim + out];
          target[row * dim + out] = static_cast<float>(sum);
        }
      }
    }
  }
};

TEST_P(TableFitTest, WeightsAreThoseThatMadeTheTargets) {
  const fs::path folder = fs::path("rope") / GetParam();
  SpecPair specs = {GoldenFit::Spec(folder / "source_config.json"),
                    GoldenFit::Spec(folder / "target_config.json")};
  for (const Role role : kRoles) {
    specs.of(role).identity = SmallPair().of(role).identity;  // the configs carry no names
    specs.of(role).geometry.dtype = tensor::DType::kF32;
  }
  const Golden tables(folder / "tables.safetensors"), weights(folder / "right_weights.safetensors");
  TempDir dir;
  for (int64_t i = 0; i < kShards; ++i) {
    const std::string id = std::to_string(i);
    ShardFile shard = MakeShard(
        {.sequence_id = id, .specs = specs, .rows = kRows, .seed = static_cast<uint32_t>(i)});
    MakeTargets(weights, 2, specs.source.geometry.head_dim, shard);
    Rotate(specs.source, "source", tables, shard.floats("source.keys"));
    Rotate(specs.target, "target", tables, shard.floats("target.keys"));
    shard.Write(dir / (id + ".safetensors"));
  }
  const GoldenFit fit({.name = GetParam(), .shards = dir.path(), .lambda = 1e-4});
  ASSERT_TRUE(fit.status().ok()) << fit.status();
  EXPECT_EQ(fit.lists(), (std::vector<std::vector<int32_t>>{{0}, {1}}));
  EXPECT_LE(Distance(fit.mapper(), folder / "right_weights.safetensors"), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Golden, TableFitTest,
                         ::testing::Values("yarn_both", "partial_interleaved"),
                         [](const auto& info) { return std::string(info.param); });

// The prototype refuses 4 heads of 16 onto 2 heads of 32.
TEST(UnmatchedFitTest, ListsAreTheGeneratorsAndWeightsTheRightOnes) {
  const GoldenFit fit({.name = "unmatched", .shards = "unmatched/calib", .k = 2});
  ASSERT_TRUE(fit.status().ok()) << fit.status();
  const Json behaviour =
      *base::ParseStrictJson(*base::ReadFile(kGolden / "unmatched/behaviour.json", 1 << 20), "b");
  EXPECT_EQ(Json(fit.lists()), behaviour["artifact_selected_layers"]);
  EXPECT_LE(Distance(fit.mapper(), "unmatched/artifact-k2-fp32/mapper.safetensors"), kTolerance);
}

}  // namespace
}  // namespace kvbridge::fit
