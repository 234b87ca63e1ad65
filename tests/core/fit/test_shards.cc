#include "tests/core/fit/test_shards.h"

#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <gtest/gtest.h>

#include "core/artifact/safetensors_writer.h"
#include "core/artifact/spec_json.h"
#include "core/base/strict_json.h"
#include "core/rope/inv_freq.h"
#include "core/tensor/convert.h"

namespace kvbridge::fit {
namespace {

using artifact::StDType;

model::ModelSpec Spec(const std::string& id, int32_t layers, double theta, double factor) {
  model::ModelSpec spec;
  spec.identity = {"test", id, "0123abc", std::string(64, 'a'), "", "", ""};
  spec.geometry = {.layers = layers, .kv_heads = 2, .head_dim = 8, .dtype = tensor::DType::kBf16};
  spec.rope.params = *rope::MakeRopeParams(theta, 8, rope::Pairing::kHalf, rope::DefaultScaling{});
  spec.rope.params.attention_factor = factor;
  return spec;
}

std::vector<std::byte> Encode(const std::vector<float>& values, StDType dtype) {
  const auto to = dtype == StDType::kF32 ? tensor::DType::kF32 : tensor::DType::kBf16;
  std::vector<std::byte> bytes(values.size() * artifact::ByteSize(dtype));
  tensor::EncodeRow(to, values.data(), 1, bytes.data(), values.size());
  return bytes;
}

ShardFile::Tensor Integers(int64_t count, const std::function<int64_t(int64_t)>& value) {
  ShardFile::Tensor tensor{StDType::kI64, {count}, std::vector<std::byte>(count * 8)};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t v = value(i);
    std::memcpy(tensor.data.data() + i * 8, &v, 8);
  }
  return tensor;
}

}  // namespace

SpecPair SmallPair() { return {Spec("small", 3, 1e4, 1), Spec("large", 2, 1e6, 1.25)}; }

void ShardFile::Write(const std::filesystem::path& path) const {
  std::map<std::string, artifact::StTensor> views;
  for (const auto& [name, t] : tensors) views[name] = {t.dtype, t.shape, t.data};
  ASSERT_TRUE(artifact::WriteSafeTensors(path, views, metadata).ok());
}

ShardFile MakeShard(const TestShard& shard) {
  std::mt19937 rng(shard.seed);
  std::normal_distribution<float> normal;
  ShardFile file;
  // Targets follow sources, so that cross moments are not noise alone.
  std::vector<float> common(static_cast<size_t>(shard.rows));
  for (float& v : common) v = normal(rng);
  for (const Role role : kRoles) {
    const model::KvGeometry& g = shard.specs.of(role).geometry;
    for (const char* suffix : {".keys", ".values"}) {
      std::vector<float> values;
      for (int64_t i = 0; i < g.layers * g.kv_heads * shard.rows * g.head_dim; ++i) {
        const auto row = static_cast<size_t>(i / g.head_dim % shard.rows);
        values.push_back(shard.mean + common[row] + normal(rng));
      }
      file.tensors[absl::StrCat(Name(role), suffix)] = {
          shard.dtype, {g.layers, g.kv_heads, shard.rows, g.head_dim}, Encode(values, shard.dtype)};
    }
  }
  file.tensors["positions"] =
      Integers(shard.rows, [&](int64_t i) { return shard.first_position + 4 * i; });
  file.tensors["token_ids"] = Integers(shard.rows, [&](int64_t) { return rng() % 1000; });
  const auto spec = [&](Role role) {
    return base::CanonicalJson(artifact::SpecToJson(shard.specs.of(role)));
  };
  file.metadata = {
      {"format", "kvbridge-shard"},    {"schema", "1"},      {"sequence_id", shard.sequence_id},
      {"domain", shard.domain},        {"keys", shard.keys}, {"source", spec(Role::kSource)},
      {"target", spec(Role::kTarget)}, {"provenance", "{}"}};
  return file;
}

void WriteShards(const std::filesystem::path& dir, int count, int64_t rows, float mean) {
  std::filesystem::create_directories(dir);
  for (int i = 0; i < count; ++i) {
    const std::string id = absl::StrFormat("s%02d", i);
    MakeShard({.sequence_id = id,
               .domain = i % 3 == 0 ? "code" : "general",
               .rows = rows,
               .seed = 100 + static_cast<uint32_t>(i),
               .mean = mean})
        .Write(dir / (id + ".safetensors"));
  }
}

}  // namespace kvbridge::fit
