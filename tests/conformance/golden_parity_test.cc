// The whole map against what the Python prototype made of the same caches, and, where the prototype
// is wrong (YaRN, partial rotation), against the double-precision results in golden/.
//
// FP32 weights on the FP32 path must agree to 1e-5 of the row's norm; BF16 weights on the serving
// path to 2^-7 of it (features, too, are rounded to BF16 there). A row is one head of one token.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/artifact/artifact.h"
#include "core/base/worker_pool.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/kv/buffer_pool.h"
#include "core/kv/kv_view.h"
#include "core/model/hf_config.h"
#include "core/rope/inv_freq.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/safetensors_lite.h"

namespace kvbridge {
namespace {

using device::Precision;
using test::LiteTensor;
using test::SafetensorsLite;

constexpr char kGolden[] = "tests/data/golden/";
constexpr double kBf16Tolerance = 1.0 / 128;
constexpr double kF32Tolerance = 1e-5;

class GoldenParityTest : public ::testing::Test {
 protected:
  GoldenParityTest()
      : workers_(base::WorkerPool::Create({.threads = 2}).value()),
        backend_(device::CpuBackend::Create({}, workers_.get(), kv::BufferPool::Create(64 << 20))
                     .value()) {}

  // One sequence of a golden cache tensor pair, [layers, batch, heads, tokens, head_dim] FP32.
  static kv::KvView View(std::vector<float>& keys, std::vector<float>& values,
                         const std::vector<int64_t>& shape, int64_t sequence) {
    const int64_t head = shape[3] * shape[4];
    const int64_t layer = shape[1] * shape[2] * head;
    kv::KvView view{.dtype = tensor::DType::kF32,
                    .layers = static_cast<int32_t>(shape[0]),
                    .kv_heads = static_cast<int32_t>(shape[2]),
                    .head_dim = static_cast<int32_t>(shape[4]),
                    .tokens = shape[3]};
    for (int64_t l = 0; l < shape[0]; ++l) {
      for (std::vector<float>* data : {&keys, &values}) {
        view.planes.push_back({.base = reinterpret_cast<std::byte*>(data->data() + l * layer +
                                                                    sequence * shape[2] * head),
                               .token_stride = shape[4] * 4,
                               .head_stride = head * 4});
      }
    }
    return view;
  }

  // The largest distance of a row from `expected`, as a share of the expected row's norm.
  static double WorstRow(const std::vector<float>& got, const std::vector<float>& expected,
                         int64_t row) {
    double worst = 0;
    for (size_t begin = 0; begin < expected.size(); begin += row) {
      double distance = 0;
      double norm = 0;
      for (size_t i = begin; i < begin + row; ++i) {
        distance += std::pow(double{got[i]} - expected[i], 2);
        norm += std::pow(double{expected[i]}, 2);
      }
      worst = std::max(worst, std::sqrt(distance / norm));
    }
    return worst;
  }

  // Maps `prefix`source.* of the file and compares with `expected`.{keys,values}.
  void ExpectMapsTo(std::shared_ptr<const mapper::Mapper> mapper, Precision precision,
                    const SafetensorsLite& file, const std::string& prefix,
                    const std::vector<int64_t>& positions, const std::string& expected,
                    double tolerance) {
    std::vector<float> keys = file.AsFloat(prefix + "source.keys");
    std::vector<float> values = file.AsFloat(prefix + "source.values");
    const auto& source_shape = file[prefix + "source.keys"].shape;
    const auto& shape = file[expected + ".keys"].shape;
    std::vector<float> mapped_keys(file.AsFloat(expected + ".keys").size(), NAN);
    std::vector<float> mapped_values(mapped_keys.size(), NAN);
    const auto resident = backend_->MakeResident(mapper, precision, {});
    ASSERT_TRUE(resident.ok()) << resident.status();
    for (int64_t sequence = 0; sequence < shape[1]; ++sequence) {
      const kv::KvView source = View(keys, values, source_shape, sequence);
      const kv::KvView target = View(mapped_keys, mapped_values, shape, sequence);
      const auto tile = backend_->Prepare(
          **resident, {.view = &source, .tokens = {0, source.tokens}, .positions = positions});
      ASSERT_TRUE(tile.ok()) << tile.status();
      const auto checks = backend_->MapLayers(**resident, **tile, {0, target.layers}, target, 0,
                                              [] { return false; });
      ASSERT_TRUE(checks.ok()) << checks.status();
      EXPECT_EQ(checks->non_finite, 0u);
    }
    EXPECT_LT(WorstRow(mapped_keys, file.AsFloat(expected + ".keys"), shape[4]), tolerance)
        << expected << " keys";
    EXPECT_LT(WorstRow(mapped_values, file.AsFloat(expected + ".values"), shape[4]), tolerance)
        << expected << " values";
  }

  static model::RopeSpec Rope(double theta, int32_t head_dim, model::Pairing pairing) {
    return {.params =
                rope::MakeRopeParams(theta, head_dim, pairing, rope::DefaultScaling{}).value()};
  }

  static model::ModelSpec Spec(int32_t layers, int32_t heads, int32_t head_dim, double theta,
                               model::Pairing pairing) {
    return {.geometry = {.layers = layers, .kv_heads = heads, .head_dim = head_dim},
            .rope = Rope(theta, head_dim, pairing)};
  }

  std::shared_ptr<const mapper::Mapper> Load(const std::string& dir, const model::ModelSpec& source,
                                             const model::ModelSpec& target) {
    auto artifact = artifact::LoadArtifact(
        kGolden + dir, {.pool = workers_.get(), .source = source, .target = target});
    EXPECT_TRUE(artifact.ok()) << dir << ": " << artifact.status();
    return artifact.ok() ? artifact->mapper : nullptr;
  }

  // "main-k2-fp32" as its storage dtype asks to be judged.
  static bool IsBf16(const std::string& name) { return name.find("bf16") != std::string::npos; }

  void ExpectArtifactAgrees(const std::string& artifact, const std::string& variant,
                            const model::ModelSpec& source, const model::ModelSpec& target,
                            const SafetensorsLite& file, const std::vector<int64_t>& positions) {
    SCOPED_TRACE(artifact);
    const auto mapper = Load(artifact, source, target);
    ASSERT_NE(mapper, nullptr);
    // On the FP32 path both storages agree with what the prototype computed in FP32 from them.
    ExpectMapsTo(mapper, Precision::kF32, file, "", positions, "mapped." + variant, kF32Tolerance);
    if (IsBf16(artifact)) {
      ExpectMapsTo(mapper, Precision::kBf16, file, "", positions, "mapped." + variant,
                   kBf16Tolerance);
    }
  }

  std::unique_ptr<base::WorkerPool> workers_;
  std::unique_ptr<device::CpuBackend> backend_;
};

TEST_F(GoldenParityTest, EveryVariantMapsEveryPairOfTheMainModels) {
  const auto source = Spec(4, 2, 32, 1e4, model::Pairing::kHalf);
  const auto target = Spec(6, 2, 32, 1e6, model::Pairing::kHalf);
  int compared = 0;
  for (int i = 0; i < 5; ++i) {
    const SafetensorsLite file(kGolden + ("pairs/main_eval" + std::to_string(i)) + ".safetensors");
    SCOPED_TRACE(i);
    for (const char* variant : {"k1-fp32", "k1-bf16", "k2-fp32", "k2-bf16", "k4-fp32", "k4-bf16",
                                "k2-stride3-fp32", "k2-accf32-fp32", "k2-position-fp32"}) {
      if (!file.Has(std::string("mapped.") + variant + ".keys")) continue;
      ExpectArtifactAgrees(std::string("artifacts/main-") + variant, variant, source, target, file,
                           file.AsInt64("positions"));
      ++compared;
    }
  }
  EXPECT_GE(compared, 5 * 6) << "the golden files hold what this test is for";
}

TEST_F(GoldenParityTest, InterleavedPairsAgree) {
  const auto source = Spec(3, 2, 16, 1e4, model::Pairing::kInterleaved);
  const auto target = Spec(3, 2, 16, 5e5, model::Pairing::kInterleaved);
  for (const char* name : {"interleaved_eval0", "interleaved_eval1"}) {
    const SafetensorsLite file(std::string(kGolden) + "pairs/" + name + ".safetensors");
    for (const char* variant : {"k2-fp32", "k2-bf16"}) {
      ExpectArtifactAgrees(std::string("artifacts/interleaved-") + variant, variant, source, target,
                           file, file.AsInt64("positions"));
    }
  }
}

TEST_F(GoldenParityTest, UnmatchedHeadsAndDimsAgree) {
  const auto source = Spec(3, 4, 16, 1e4, model::Pairing::kHalf);
  const auto target = Spec(5, 2, 32, 1e6, model::Pairing::kHalf);
  const SafetensorsLite file(std::string(kGolden) + "unmatched/eval0.safetensors");
  std::vector<int64_t> positions(20);
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int64_t>(i);
  for (const char* variant : {"k2-fp32", "k2-bf16"}) {
    ExpectArtifactAgrees(std::string("unmatched/artifact-") + variant, variant, source, target,
                         file, positions);
  }
}

// One layer's tensors as the prototype names them.
mapper::LayerMap LayerOf(const SafetensorsLite& weights, const std::string& component,
                         const std::string& layer, int32_t source_layer) {
  const auto ref = [&](const std::string& what) {
    const LiteTensor& t = weights[component + what + layer];
    return mapper::TensorRef{.dtype = tensor::DType::kF32, .shape = t.shape, .data = t.bytes};
  };
  return {.sources = {source_layer}, .weight = ref("_weight."), .bias = ref("_bias.")};
}

TEST_F(GoldenParityTest, ScaledAndPartialRotationsGiveTheRightResultWhereThePrototypeDoesNot) {
  const auto report =
      nlohmann::json::parse(test::ReadTestFile(kGolden + std::string("rope/report.json")));
  for (const char* name : {"yarn", "yarn_both", "llama3", "partial", "partial_interleaved"}) {
    SCOPED_TRACE(name);
    const std::string dir = std::string(kGolden) + "rope/" + name + "/";
    auto weights = std::make_shared<SafetensorsLite>(dir + "right_weights.safetensors");
    const SafetensorsLite file(dir + "eval.safetensors");
    auto mapper = std::make_shared<mapper::Mapper>();
    for (auto [spec, role] : {std::pair{&mapper->source, "source"}, {&mapper->target, "target"}}) {
      const auto config = model::SpecFromHfConfig(test::ReadTestFile(dir + role + "_config.json"),
                                                  {}, std::string(role) + "_config.json");
      ASSERT_TRUE(config.ok()) << config.status();
      spec->rope = config->rope;
      spec->geometry = {.layers = 2, .kv_heads = 1, .head_dim = config->geometry.head_dim};
    }
    for (int layer = 0; layer < 2; ++layer) {
      const int32_t source_layer = report[name]["selected_layers"][layer][0];
      mapper->keys.push_back(LayerOf(*weights, "key", std::to_string(layer), source_layer));
      mapper->values.push_back(LayerOf(*weights, "value", std::to_string(layer), source_layer));
    }
    mapper->storage = weights;
    for (const char* cache : {"dense.", "gappy."}) {
      const auto positions = file.AsInt64(std::string(cache) + "positions");
      const std::string expected = std::string(cache) + "expected";
      ExpectMapsTo(mapper, Precision::kF32, file, cache, positions, expected, kF32Tolerance);
      ExpectMapsTo(mapper, Precision::kBf16, file, cache, positions, expected, kBf16Tolerance);
    }
  }
}

}  // namespace
}  // namespace kvbridge
