// Training networks: with LibTorch, or what is said without it.
#include "core/fit/mlp.h"

#include <cmath>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/artifact/artifact.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/tensor/convert.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/fit/test_shards.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;
using mapper::Support;
using ::testing::HasSubstr;

// Each number of target layer l and head h is |a - b| + 0.3 a of two dims of source layer l + 1.
// The first term goes with neither a nor b alone: the best linear map is 0.3 a + E|a - b|, with
// residual (2 - 4 / pi) over variance (2 - 4 / pi + 0.18), a - b and a having a variance of 2.
constexpr double kLinearError = 0.727 / (0.727 + 0.18);
void WriteNonlinearShards(const fs::path& dir, int count, int64_t rows) {
  fs::create_directories(dir);
  for (int i = 0; i < count; ++i) {
    TestShard shard{.sequence_id = absl::StrCat("s", i),
                    .keys = "stripped",
                    .rows = rows,
                    .seed = 7 + static_cast<uint32_t>(i)};
    ShardFile file = MakeShard(shard);
    for (const char* component : {".keys", ".values"}) {
      const float* x = file.floats(absl::StrCat("source", component));
      float* y = file.floats(absl::StrCat("target", component));
      for (int64_t l = 0; l < 2; ++l) {
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t d = 0; d < 8; ++d) {
              const float a = x[(((l + 1) * 2 + h) * rows + r) * 8 + d];
              const float b = x[(((l + 1) * 2 + h) * rows + r) * 8 + (d + 1) % 8];
              y[((l * 2 + h) * rows + r) * 8 + d] = std::abs(a - b) + 0.3f * a;
            }
          }
        }
      }
    }
    file.Write(dir / absl::StrCat("s", i, ".safetensors"));
  }
}

class MlpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CanTrain()) GTEST_SKIP() << "built without LibTorch";
    WriteNonlinearShards(shards(), 10, 200);
    MakeBase();
  }
  fs::path shards() const { return dir_.path() / "shards"; }

  // The best linear map.
  void MakeBase() {
    auto mapper = std::make_shared<mapper::Mapper>();
    const SpecPair pair = SmallPair();
    mapper->source = pair.source;
    mapper->target = pair.target;
    auto storage = std::make_shared<std::vector<std::vector<std::byte>>>();
    storage->reserve(16);
    const auto tensor = [&](std::vector<int64_t> shape, const std::vector<float>& values) {
      auto& bytes = storage->emplace_back(values.size() * 2);
      tensor::EncodeRow(tensor::DType::kBf16, values.data(), 1, bytes.data(), values.size());
      return mapper::TensorRef{tensor::DType::kBf16, std::move(shape), bytes};
    };
    std::vector<float> identity(2 * 8 * 8);
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 8; ++d) identity[(h * 8 + d) * 8 + d] = 0.3f;
    }
    for (int32_t l = 0; l < 2; ++l) {
      for (auto* maps : {&mapper->keys, &mapper->values}) {
        maps->push_back({.support = Support::kHeadLocal,
                         .sources = {l + 1},
                         .weight = tensor({2, 8, 8}, identity),
                         .bias = tensor({2, 8}, std::vector<float>(16, 1.128f))});
      }
    }
    mapper->storage = storage;
    mapper->digest = std::string(64, 'b');
    base_ = {.mapper = mapper};
  }

  MlpOptions Options(const char* work) const {
    return {.folder = {.held_out = 0.2},
            .train = {.hidden = {64}, .batch = 64, .max_epochs = 30, .threads = 1},
            .work = dir_.path() / work};
  }
  absl::StatusOr<Solution> Fit(const MlpOptions& options) {
    return FitMlp(base_, shards(), options, pool_.get());
  }
  std::string Save(const Solution& solution, const char* name) {
    return artifact::SaveArtifact(dir_.path() / name, solution.mapper, solution.provenance,
                                  {.pool = pool_.get()})
        .value();
  }

  artifact::TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
  artifact::Artifact base_;
};

TEST(MlpWithoutLibTorchTest, TrainingSaysWhatIsMissing) {
  if (CanTrain()) GTEST_SKIP() << "built with LibTorch";
  const absl::Status status = FitMlp({}, "nowhere", {}, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("KVBRIDGE_TORCH_DIR"));
}

TEST_F(MlpTest, ABottleneckLearnsWhatTheLinearMapCannot) {
  const auto solution = Fit(Options("work"));
  ASSERT_TRUE(solution.ok()) << solution.status();
  const base::Json& record = solution->provenance.calibration["network"];
  EXPECT_EQ(record["rows"]["fit"], 1600);
  EXPECT_EQ(record["rows"]["held_out"], 400);
  for (const auto& layer : record["layers"]) {
    for (const char* component : {"key", "value"}) {
      const base::Json& entry = layer[component];
      EXPECT_TRUE(entry["kept"]);
      EXPECT_NEAR(entry["linear_error"].get<double>(), kLinearError, 0.05);
      EXPECT_LT(entry["error"].get<double>(), 0.5 * entry["linear_error"].get<double>()) << record;
    }
  }
  EXPECT_EQ(mapper::Describe(solution->mapper.keys[1]), "head_local + 64");
  EXPECT_TRUE(mapper::Validate(solution->mapper).ok());
}

// Residual over variance, on the held-out rows, of what a device maps with `mapper`.
double ServedError(const mapper::Mapper& mapper, const fs::path& shards, kv::Component component,
                   base::WorkerPool* pool) {
  auto backend =
      device::CpuBackend::Create({}, pool, kv::BufferPool::Create(uint64_t{1} << 28)).value();
  const auto resident =
      backend->MakeResident(std::make_shared<mapper::Mapper>(mapper), device::Precision::kBf16, {})
          .value();
  std::vector<double> got, want;
  const ShardFolder folder = OpenShardFolder(shards, {.held_out = 0.2}).value();
  for (const Sequence& sequence : folder.sequences) {
    if (sequence.split != Split::kHeldOut) continue;
    const Shard shard = Shard::Open(sequence.pieces[0].path).value();
    const int64_t rows = shard.rows();
    std::vector<std::byte> in(3 * 2 * rows * 16 * 4), out(2 * 2 * rows * 16 * 4);
    const kv::KvView source = kv::DenseTileView(in.data(), tensor::DType::kF32, 3, rows, 2, 8);
    const kv::KvView target = kv::DenseTileView(out.data(), tensor::DType::kF32, 2, rows, 2, 8);
    std::vector<float> head(static_cast<size_t>(rows * 8));
    for (int32_t l = 0; l < 3; ++l) {
      for (const kv::Component c : kv::kComponents) {
        for (int32_t h = 0; h < 2; ++h) {
          shard.ReadHead(Role::kSource, c, l, h, 0, rows, true, head.data(), 8);
          for (int64_t t = 0; t < rows; ++t) kv::WriteHead(source, l, c, t, h, head.data() + t * 8);
        }
      }
    }
    // At position 0 nothing turns; the target's attention factor is still in its keys.
    const std::vector<int64_t> positions(static_cast<size_t>(rows));
    const auto tile = backend
                          ->Prepare(*resident, {.view = &source,
                                                .tokens = {0, rows},
                                                .positions = positions,
                                                .keys_are_roped = false})
                          .value();
    EXPECT_TRUE(backend->MapLayers(*resident, *tile, {0, 2}, target, 0, [] { return false; }).ok());
    std::vector<float> row(16);
    for (int32_t h = 0; h < 2; ++h) {
      shard.ReadHead(Role::kTarget, component, 1, h, 0, rows, true, head.data(), 8);
      want.insert(want.end(), head.begin(), head.end());
      for (int64_t t = 0; t < rows; ++t) {
        kv::ReadRows(target, 1, component, {t, t + 1}, row.data());
        for (int32_t d = 0; d < 8; ++d) {
          got.push_back(row[h * 8 + d] / (component == kv::Component::kKey ? 1.25 : 1));
        }
      }
    }
  }
  double residual = 0, sum = 0, squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    residual += (got[i] - want[i]) * (got[i] - want[i]);
    sum += want[i];
    squares += want[i] * want[i];
  }
  return residual / (squares - sum * sum / static_cast<double>(want.size()));
}

// The error that chooses is the error of what is served: linear map, network, rounding and the
// norm of keys.
TEST_F(MlpTest, TheRecordedErrorIsThatOfWhatIsServed) {
  for (const bool alone : {false, true}) {
    auto mapper = std::make_shared<mapper::Mapper>(*base_.mapper);
    mapper->key_norm = {.kind = mapper::KeyNorm::Kind::kKNorm,
                        .gamma = {2, {1.0f, 1.5f, 0.5f, 2.0f, 0.0f, 1.0f, 3.0f, 1.0f}}};
    base_.mapper = mapper;
    MlpOptions options = Options(alone ? "alone" : "beside");
    options.alone = alone;
    const auto solution = Fit(options);
    ASSERT_TRUE(solution.ok()) << solution.status();
    const base::Json& layer = solution->provenance.calibration["network"]["layers"][1];
    // Variance is about the mean of each column there, and all columns have the same one.
    EXPECT_NEAR(ServedError(solution->mapper, shards(), kv::Component::kKey, pool_.get()),
                layer["key"]["error"].get<double>(), 0.01);
    EXPECT_NEAR(ServedError(solution->mapper, shards(), kv::Component::kValue, pool_.get()),
                layer["value"]["error"].get<double>(), 0.01);
    EXPECT_LT(layer["key"]["error"].get<double>(),
              alone ? 1 : layer["key"]["linear_error"].get<double>());
  }
}

TEST_F(MlpTest, ANetworkMayStandAlone) {
  MlpOptions options = Options("work");
  options.alone = true;
  options.train.hidden = {48, 32};
  const auto solution = Fit(options);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(mapper::Describe(solution->mapper.values[0]), "mlp 48, 32");
  const base::Json& entry = solution->provenance.calibration["network"]["layers"][0]["value"];
  EXPECT_NEAR(entry["linear_error"].get<double>(), 1, 0.05);  // of the mean
  EXPECT_LT(entry["error"].get<double>(), 0.3);
  EXPECT_TRUE(mapper::Validate(solution->mapper).ok());
}

TEST_F(MlpTest, TheSameSeedGivesTheSameDigestAndSoDoesAnInterruptedRun) {
  const std::string whole = Save(Fit(Options("one")).value(), "a");
  // A run that ends after its second network, as if it was killed.
  MlpOptions options = Options("two");
  std::stop_source stop;
  options.train.stop = stop.get_token();
  options.progress = [&](const std::string& text) {
    if (text.find("keys[1]") != std::string::npos) stop.request_stop();
  };
  EXPECT_EQ(Fit(options).status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(fs::exists(dir_.path() / "two/value.0.safetensors"));
  EXPECT_FALSE(fs::exists(dir_.path() / "two/key.1.safetensors"));

  EXPECT_EQ(Fit(Options("two")).status().code(), absl::StatusCode::kAlreadyExists);
  options = Options("two");
  options.resume = true;
  EXPECT_EQ(Save(Fit(options).value(), "b"), whole);

  options.train.seed = 1;
  EXPECT_THAT(std::string(Fit(options).status().message()), HasSubstr("other options"));
}

TEST_F(MlpTest, ALossThatIsNotFiniteIsNamed) {
  MlpOptions options = Options("work");
  options.train.learning_rate = 1e30;
  const absl::Status status = Fit(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("keys[0]: training: expected a finite"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("smaller learning rate"));
}

TEST_F(MlpTest, WhatCannotBeFittedIsRefusedByName) {
  MlpOptions options = Options("work");
  options.memory_bytes = 100'000;
  absl::Status status = Fit(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  // 2,000 rows of 16 BF16 features and 16 floats.
  EXPECT_THAT(std::string(status.message()), HasSubstr("a token stride of 2 would fit"));

  options = Options("work");
  options.folder.held_out = 0;
  EXPECT_THAT(std::string(Fit(options).status().message()), HasSubstr("held out: expected rows"));

  auto other = std::make_shared<mapper::Mapper>(*base_.mapper);
  other->target.geometry.kv_heads = 3;
  base_.mapper = other;
  status = Fit(Options("work")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("expected the base's target large of 2 layers, 3 heads of 8, got large of "
                        "2 layers, 2 heads of 8"));
}

// A network that gains nothing costs bytes for nothing.
TEST_F(MlpTest, ANetworkThatGainsNothingIsLeftOut) {
  MlpOptions options = Options("work");
  options.train.max_epochs = 0;
  const auto solution = Fit(options);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(mapper::Describe(solution->mapper.keys[0]), "head_local");
  EXPECT_FALSE(solution->provenance.calibration["network"]["layers"][0]["key"]["kept"]);
}

}  // namespace
}  // namespace kvbridge::fit
