#include "tests/core/device/random_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/tensor/convert.h"

namespace kvbridge::device {
namespace {

using kv::Component;
using mapper::KeyNorm;
using mapper::LayerMap;
using mapper::Mapper;
using mapper::Support;
using tensor::DType;

template <typename T>
T Pick(std::initializer_list<T> choices, std::mt19937& rng) {
  return choices.begin()[rng() % choices.size()];
}

// Tensors' bytes; deque-like stability is given by one vector per tensor.
using Storage = std::vector<std::vector<std::byte>>;

mapper::TensorRef MakeTensor(std::vector<int64_t> shape, DType dtype, float deviation,
                             std::mt19937& rng, Storage& storage) {
  const int64_t n = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(n);
  for (float& v : values) v = normal(rng);
  auto& bytes = storage.emplace_back(n * tensor::ByteSize(dtype));
  tensor::EncodeRow(dtype, values.data(), 1, bytes.data(), n);
  return {dtype, std::move(shape), bytes};
}

double At(const mapper::TensorRef& tensor, int64_t i) {
  float value;
  tensor::DecodeRow(tensor.dtype, tensor.data.data() + i * tensor::ByteSize(tensor.dtype), 1,
                    &value, 1);
  return value;
}

std::vector<int32_t> SomeLayers(int32_t count, int32_t layers, std::mt19937& rng) {
  std::vector<int32_t> all(layers);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), rng);
  all.resize(std::min(count, layers));
  return all;
}

std::pair<int32_t, int32_t> PairDims(const model::RopeParams& rope, int32_t i) {
  if (rope.pairing == model::Pairing::kInterleaved) return {2 * i, 2 * i + 1};
  return {i, i + rope.rotary_dim / 2};
}

// direction +1: k -> a R k; -1: a R k -> k.
void Rotate(const model::RopeParams& rope, int64_t position, int direction, double* head) {
  const double factor = direction > 0 ? rope.attention_factor : 1 / rope.attention_factor;
  for (int32_t i = 0; i < rope.rotary_dim / 2; ++i) {
    const double angle = direction * double(position) * rope.inv_freq[i];
    const auto [x, y] = PairDims(rope, i);
    const double a = head[x], b = head[y];
    head[x] = factor * (a * std::cos(angle) - b * std::sin(angle));
    head[y] = factor * (a * std::sin(angle) + b * std::cos(angle));
  }
}

void Renormalise(const KeyNorm& norm, int32_t layer, double* head, int32_t dim) {
  double squares = 0;
  for (int32_t d = 0; d < dim; ++d) squares += std::pow(head[d] / norm.gamma[layer][d], 2);
  const double rms = std::sqrt(squares / dim + norm.eps);
  for (int32_t d = 0; d < dim; ++d) head[d] /= rms;
}

mapper::TensorRef MakeWeight(std::vector<int64_t> shape, int64_t inputs, DType dtype,
                             std::mt19937& rng, Storage& storage) {
  return MakeTensor(std::move(shape), dtype, 1 / std::sqrt(float(inputs)), rng, storage);
}

void AddNetwork(const MapSpec& spec, std::mt19937& rng, Storage& storage, LayerMap& map) {
  int64_t inputs = map.inputs(spec.source);
  for (const int32_t width : spec.hidden) {
    map.hidden.push_back(
        {.weight = MakeWeight({inputs, width}, inputs, spec.weight_dtype, rng, storage),
         .bias = MakeTensor({width}, spec.weight_dtype, 0.3f, rng, storage)});
    inputs = width;
  }
  if (spec.hidden.empty()) return;
  map.out = MakeWeight({spec.target.kv_heads, inputs, spec.target.head_dim}, inputs,
                       spec.weight_dtype, rng, storage);
}

// The network's last activations.
std::vector<double> Activations(const LayerMap& map, std::vector<double> x) {
  for (const mapper::HiddenLayer& layer : map.hidden) {
    std::vector<double> next(layer.width());
    for (int64_t w = 0; w < layer.width(); ++w) {
      next[w] = At(layer.bias, w);
      for (size_t i = 0; i < x.size(); ++i) {
        next[w] += x[i] * At(layer.weight, static_cast<int64_t>(i) * layer.width() + w);
      }
      next[w] = std::max(next[w], 0.0);
    }
    x = std::move(next);
  }
  return x;
}

KeyNorm MakeKeyNorm(const MapSpec& spec, std::mt19937& rng) {
  KeyNorm norm{.kind = spec.key_norm};
  std::uniform_real_distribution<float> around_one(0.5f, 2.0f);
  const auto table = [&](int32_t width) {
    std::vector<std::vector<float>> rows(spec.target.layers, std::vector<float>(width));
    for (auto& row : rows) std::generate(row.begin(), row.end(), [&] { return around_one(rng); });
    return rows;
  };
  if (norm.kind == KeyNorm::Kind::kKNorm) norm.gamma = table(spec.target.head_dim);
  if (norm.kind == KeyNorm::Kind::kScale) {
    norm.key_scale = table(spec.target.kv_heads);
    norm.value_scale = table(spec.target.kv_heads);
  }
  return norm;
}

}  // namespace

std::unique_ptr<Cache> Cache::Make(const model::KvGeometry& geometry, int64_t tokens, Layout layout,
                                   float fp8_scale, std::mt19937& rng) {
  constexpr int64_t kPage = 16;
  auto cache = std::make_unique<Cache>();
  const int64_t page_count = (tokens + kPage - 1) / kPage;
  const int64_t slots = layout == Layout::kPaged ? (page_count + 2) * kPage : tokens;
  const int64_t head_bytes = geometry.head_dim * int64_t(tensor::ByteSize(geometry.dtype));
  const int64_t plane_bytes = slots * geometry.kv_heads * head_bytes;
  cache->bytes.resize(2 * geometry.layers * plane_bytes);
  kv::KvView& view = cache->view;
  if (layout == Layout::kHeadMajor) {
    view = kv::DenseHeadMajorView(
        cache->bytes.data(), cache->bytes.data() + geometry.layers * plane_bytes, geometry.dtype,
        geometry.layers, slots, geometry.kv_heads, geometry.head_dim);
  } else {
    view = kv::DenseTileView(cache->bytes.data(), geometry.dtype, geometry.layers, slots,
                             geometry.kv_heads, geometry.head_dim);
  }
  view.tokens = tokens;
  if (layout == Layout::kPaged) {
    cache->pages.resize(page_count + 2);
    std::iota(cache->pages.begin(), cache->pages.end(), 0);
    std::shuffle(cache->pages.begin(), cache->pages.end(), rng);
    view.tokens_per_page = kPage;
    view.pages = cache->pages;
    for (kv::Plane& plane : view.planes) plane.page_stride = kPage * plane.token_stride;
  }
  std::normal_distribution<float> normal;
  std::vector<float> head(geometry.head_dim);
  for (int32_t l = 0; l < geometry.layers; ++l) {
    for (Component c : kv::kComponents) {
      if (geometry.dtype == DType::kF8E4M3) view.plane(l, c).scales = {fp8_scale * (l + 1)};
      for (int64_t t = 0; t < tokens; ++t) {
        for (int32_t h = 0; h < geometry.kv_heads; ++h) {
          std::generate(head.begin(), head.end(), [&] { return normal(rng); });
          kv::WriteHead(view, l, c, t, h, head.data());
        }
      }
    }
  }
  return cache;
}

std::vector<float> Cache::Head(int32_t layer, Component c, int64_t token, int32_t head) const {
  std::vector<float> row(view.row());
  kv::ReadRows(view, layer, c, {token, token + 1}, row.data());
  const auto begin = row.begin() + head * view.head_dim;
  return {begin, begin + view.head_dim};
}

model::RopeParams MakeRope(int32_t rotary_dim, model::Pairing pairing, double factor) {
  model::RopeParams rope{.attention_factor = factor, .rotary_dim = rotary_dim, .pairing = pairing};
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    rope.inv_freq.push_back(std::pow(10000.0, -2.0 * i / rotary_dim));
  }
  return rope;
}

std::shared_ptr<Mapper> MakeMapper(const MapSpec& spec, std::mt19937& rng) {
  auto mapper = std::make_shared<Mapper>();
  auto storage = std::make_shared<Storage>();
  mapper->source.geometry = spec.source;
  mapper->target.geometry = spec.target;
  mapper->source.rope.params = spec.source_rope;
  mapper->target.rope.params = spec.target_rope;
  if (spec.override_layer_0) {
    model::RopeParams other = spec.target_rope;
    other.attention_factor /= 2;
    mapper->target.rope.layer_overrides[0] = other;
  }
  mapper->strip_rope = spec.strip_rope;
  mapper->key_norm = MakeKeyNorm(spec, rng);
  for (auto* component : {&mapper->keys, &mapper->values}) {
    for (int32_t l = 0; l < spec.target.layers; ++l) {
      LayerMap map{.support = spec.support,
                   .sources = SomeLayers(spec.top_k, spec.source.layers, rng)};
      if (spec.cross_k > 0) map.cross_sources = SomeLayers(spec.cross_k, spec.source.layers, rng);
      if (spec.permute_heads) {
        for (int32_t h = 0; h < spec.target.kv_heads; ++h) {
          map.head_source.push_back(static_cast<int32_t>(rng() % spec.source.kv_heads));
        }
      }
      const int64_t features = map.features(spec.source);
      map.weight = MakeWeight({spec.target.kv_heads, features, spec.target.head_dim}, features,
                              spec.weight_dtype, rng, *storage);
      map.bias = MakeTensor({spec.target.kv_heads, spec.target.head_dim}, spec.weight_dtype, 0.1f,
                            rng, *storage);
      AddNetwork(spec, rng, *storage, map);
      component->push_back(std::move(map));
    }
  }
  mapper->storage = storage;
  return mapper;
}

MapSpec RandomSpec(std::mt19937& rng) {
  MapSpec spec;
  const auto geometry = [&] {
    return model::KvGeometry{
        .layers = Pick({1, 2, 3, 5}, rng),
        .kv_heads = Pick({1, 2, 3, 8}, rng),
        .head_dim = Pick({4, 16, 20, 32, 64, 80, 96, 128}, rng),
        .dtype = Pick({DType::kBf16, DType::kBf16, DType::kF16, DType::kF32, DType::kF8E4M3}, rng)};
  };
  spec.source = geometry();
  spec.target = geometry();
  spec.top_k = Pick({1, 2, 4}, rng);
  spec.cross_k = Pick({0, 0, 1, 2}, rng);
  spec.support = Pick({Support::kFull, Support::kHeadLocal}, rng);
  spec.permute_heads = spec.support == Support::kHeadLocal &&
                       (spec.source.kv_heads != spec.target.kv_heads || rng() % 2 == 0);
  spec.weight_dtype = Pick({DType::kBf16, DType::kF32}, rng);
  // Four dimensions can be short by chance, and a norm then magnifies their error.
  const auto norm = spec.target.head_dim == 4 ? KeyNorm::Kind::kNone : KeyNorm::Kind::kKNorm;
  spec.key_norm = Pick({KeyNorm::Kind::kNone, norm, KeyNorm::Kind::kScale}, rng);
  const auto rope = [&](int32_t head_dim) {
    return MakeRope(Pick({head_dim, head_dim, head_dim / 4 * 2, 0}, rng),
                    Pick({model::Pairing::kHalf, model::Pairing::kInterleaved}, rng),
                    Pick({1.0, 1.1386294361119891}, rng));
  };
  spec.source_rope = rope(spec.source.head_dim);
  spec.target_rope = rope(spec.target.head_dim);
  spec.override_layer_0 = spec.target_rope.rotary_dim > 0 && rng() % 2 == 0;
  spec.hidden = Pick<std::vector<int32_t>>({{}, {}, {5}, {70, 33}}, rng);
  if (!spec.hidden.empty() && rng() % 3 == 0) {
    spec.support = Support::kMlp;
    spec.permute_heads = false;
  }
  return spec;
}

Tile::Tile(const Cache& cache, int64_t first_position) : positions(cache.view.tokens) {
  std::iota(positions.begin(), positions.end(), first_position);
  source = {.view = &cache.view, .tokens = {0, cache.view.tokens}, .positions = positions};
}

std::vector<double> Reference(const Mapper& mapper, const TileSource& source, int32_t layer,
                              Component c) {
  const LayerMap& map = mapper.layer(layer, c);
  const model::KvGeometry& from = mapper.source.geometry;
  const model::KvGeometry& to = mapper.target.geometry;
  const int64_t features = map.features(from);
  const bool rotated = c == Component::kKey && mapper.strip_rope;
  std::vector<double> out;
  std::vector<float> row(source.view->row());
  for (int64_t t = 0; t < source.tokens.size(); ++t) {
    // [sources][heads][dims]
    std::vector<double> x;
    for (const auto& [s, component] : map.planes(c)) {
      const int64_t token = source.tokens.begin + t;
      kv::ReadRows(*source.view, s, component, {token, token + 1}, row.data());
      std::vector<double> plane(row.begin(), row.end());
      const bool roped = component == Component::kKey && mapper.strip_rope && source.keys_are_roped;
      for (int32_t h = 0; h < from.kv_heads && roped; ++h) {
        Rotate(mapper.source.rope.ForLayer(s), source.positions[t], -1,
               plane.data() + h * from.head_dim);
      }
      x.insert(x.end(), plane.begin(), plane.end());
    }
    const std::vector<double> active =
        map.hidden.empty() ? std::vector<double>() : Activations(map, x);
    const auto width = static_cast<int64_t>(active.size());
    for (int32_t h = 0; h < to.kv_heads; ++h) {
      const int32_t a = map.head_source.empty() ? h : map.head_source[h];
      std::vector<double> head(to.head_dim);
      for (int32_t d = 0; d < to.head_dim; ++d) head[d] = At(map.bias, h * to.head_dim + d);
      for (int64_t f = 0; f < features; ++f) {
        const double feature =
            map.support == Support::kFull
                ? x[f]
                : x[(f / from.head_dim * from.kv_heads + a) * from.head_dim + f % from.head_dim];
        for (int32_t d = 0; d < to.head_dim; ++d) {
          head[d] += feature * At(map.weight, (h * features + f) * to.head_dim + d);
        }
      }
      for (int64_t w = 0; w < width; ++w) {
        for (int32_t d = 0; d < to.head_dim; ++d) {
          head[d] += active[w] * At(map.out, (h * width + w) * to.head_dim + d);
        }
      }
      const KeyNorm& norm = mapper.key_norm;
      if (norm.kind == KeyNorm::Kind::kScale) {
        const auto& scale = c == Component::kKey ? norm.key_scale : norm.value_scale;
        for (double& v : head) v *= scale[layer][h];
      }
      if (norm.kind == KeyNorm::Kind::kKNorm && c == Component::kKey) {
        Renormalise(norm, layer, head.data(), to.head_dim);
      }
      if (rotated) {
        Rotate(mapper.target.rope.ForLayer(layer), source.positions[t], 1, head.data());
      }
      out.insert(out.end(), head.begin(), head.end());
    }
  }
  return out;
}

}  // namespace kvbridge::device
