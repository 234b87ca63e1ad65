// A small mapper with seeded weights that owns its tensors, for tests that need one on disk.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "core/mapper/mapper.h"
#include "core/tensor/convert.h"

namespace kvbridge::artifact {

struct SyntheticOptions {
  bool cross = false;  // maps read the other component too
  mapper::Support support = mapper::Support::kFull;
  tensor::DType dtype = tensor::DType::kF32;
  mapper::KeyNorm::Kind key_norm = mapper::KeyNorm::Kind::kNone;
  uint32_t seed = 1;
  std::vector<int32_t> hidden = {};  // widths of the network
};

inline model::ModelSpec SyntheticSpec(const char* id, int32_t layers, double theta) {
  model::ModelSpec spec;
  spec.identity = {.family = "qwen3", .model_id = id, .revision = "r1", .tokenizer_sha256 = "tok"};
  spec.geometry = {.layers = layers, .kv_heads = 2, .head_dim = 8};
  spec.rope.params = {.inv_freq = {1.0, theta, theta / 3, theta / 7}, .rotary_dim = 8};
  spec.rope.max_position = 4096;
  return spec;
}

inline std::shared_ptr<mapper::Mapper> SyntheticMapper(const SyntheticOptions& options = {}) {
  auto storage = std::make_shared<std::vector<std::vector<std::byte>>>();
  storage->reserve(128);
  std::mt19937 random(options.seed);
  const auto fill = [&](std::vector<int64_t> shape) {
    int64_t elements = 1;
    for (const int64_t dim : shape) elements *= dim;
    std::vector<float> values(elements);
    for (float& value : values) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    auto& bytes = storage->emplace_back(elements * tensor::ByteSize(options.dtype));
    tensor::EncodeRow(options.dtype, values.data(), 1.0f, bytes.data(), values.size());
    return mapper::TensorRef{options.dtype, std::move(shape), bytes};
  };
  auto mapper = std::make_shared<mapper::Mapper>();
  mapper->source = SyntheticSpec("test/small", 2, 0.1);
  mapper->target = SyntheticSpec("test/large", 3, 0.03);
  const std::vector<std::vector<int32_t>> sources = {{0}, {0, 1}, {1, 0}};
  for (int l = 0; l < 3; ++l) {
    for (auto* maps : {&mapper->keys, &mapper->values}) {
      mapper::LayerMap map{.support = options.support, .sources = sources[l]};
      if (options.cross && l > 0) map.cross_sources = {l % 2};
      map.weight = fill({2, map.features(mapper->source.geometry), 8});
      map.bias = fill({2, 8});
      int64_t inputs = map.inputs(mapper->source.geometry);
      for (const int32_t width : options.hidden) {
        map.hidden.push_back({.weight = fill({inputs, width}), .bias = fill({width})});
        inputs = width;
      }
      if (!options.hidden.empty()) map.out = fill({2, inputs, 8});
      maps->push_back(std::move(map));
    }
  }
  mapper->key_norm.kind = options.key_norm;
  if (options.key_norm == mapper::KeyNorm::Kind::kKNorm) {
    mapper->key_norm.gamma.assign(3, {1.0f, 1.5f, 0.5f, 2.0f, 1.0f, 0.25f, 3.0f, 1.0f});
  }
  if (options.key_norm == mapper::KeyNorm::Kind::kScale) {
    mapper->key_norm.key_scale.assign(3, {1.1f, 0.9f});
    mapper->key_norm.value_scale.assign(3, {1.2f, 1.0f});
  }
  mapper->storage = storage;
  return mapper;
}

}  // namespace kvbridge::artifact
