#include "bench/random_mapper.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "core/tensor/convert.h"

namespace kvbridge::bench {
namespace {

model::RopeParams Rope(int head_dim) {
  model::RopeParams rope{.rotary_dim = head_dim};
  for (int i = 0; i < head_dim / 2; ++i)
    rope.inv_freq.push_back(std::pow(1e6, -2.0 * i / head_dim));
  return rope;
}

}  // namespace

// Standard normal bf16 times `deviation`.
std::vector<std::byte> RandomBf16(size_t n, float deviation) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> block(1 << 16);
  std::generate(block.begin(), block.end(), [&] { return normal(rng); });
  std::vector<std::byte> bytes(n * 2);
  for (size_t i = 0; i < n; i += block.size()) {
    tensor::EncodeRow(tensor::DType::kBf16, block.data(), 1, bytes.data() + 2 * i,
                      std::min(block.size(), n - i));
  }
  return bytes;
}

MapperAndBytes MakeMapper(const MapperShape& shape, mapper::Support support) {
  MapperAndBytes made;
  mapper::Mapper& m = *made.mapper;
  m.source.geometry = {.layers = shape.layers, .kv_heads = shape.heads, .head_dim = shape.head_dim};
  m.target.geometry = m.source.geometry;
  m.source.rope.params = m.target.rope.params = Rope(shape.head_dim);
  m.key_norm.kind = mapper::KeyNorm::Kind::kKNorm;
  m.key_norm.gamma.assign(shape.layers, std::vector<float>(shape.head_dim, 1.5f));
  for (auto* component : {&m.keys, &m.values}) {
    for (int l = 0; l < shape.layers; ++l) {
      mapper::LayerMap map{.support = support};
      const int first = std::clamp(l - shape.top_k / 2, 0, shape.layers - shape.top_k);
      for (int s = 0; s < shape.top_k; ++s) map.sources.push_back(first + s);
      const int64_t features = map.features(m.source.geometry);
      if (made.weight.empty()) {
        made.weight = RandomBf16(shape.heads * features * shape.head_dim, 0.01f);
        made.bias = RandomBf16(shape.heads * shape.head_dim, 0.1f);
      }
      map.weight = {tensor::DType::kBf16, {shape.heads, features, shape.head_dim}, made.weight};
      map.bias = {tensor::DType::kBf16, {shape.heads, shape.head_dim}, made.bias};
      component->push_back(std::move(map));
    }
  }
  return made;
}

}  // namespace kvbridge::bench
