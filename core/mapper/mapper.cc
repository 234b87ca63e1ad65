#include "core/mapper/mapper.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::mapper {
namespace {

using model::KvGeometry;
using model::ModelSpec;

template <typename Expected, typename Got>
absl::Status Mismatch(absl::string_view field, const Expected& expected, const Got& got) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected ", expected, ", got ", got));
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckCount(absl::string_view field, size_t expected, size_t got) {
  return expected == got ? absl::OkStatus()
                         : Mismatch(field, absl::StrCat(expected, " entries"), got);
}

absl::Status CheckGeometry(absl::string_view path, const KvGeometry& geometry) {
  const std::pair<const char*, int32_t> counts[] = {{".layers", geometry.layers},
                                                    {".kv_heads", geometry.kv_heads},
                                                    {".head_dim", geometry.head_dim}};
  for (const auto& [name, value] : counts) {
    if (value < 1) return Mismatch(absl::StrCat(path, name), "at least 1", value);
  }
  return absl::OkStatus();
}

absl::Status CheckRope(absl::string_view path, const ModelSpec& spec) {
  const int32_t head_dim = spec.geometry.head_dim;
  KVB_RETURN_IF_ERROR(rope::Validate(spec.rope.params, head_dim, absl::StrCat(path, ".rope")));
  for (const auto& [layer, params] : spec.rope.layer_overrides) {
    const std::string field = absl::StrCat(path, ".rope.layer_overrides[", layer, "]");
    if (layer < 0 || layer >= spec.geometry.layers) {
      return Mismatch(field, absl::StrCat("a layer below ", spec.geometry.layers), layer);
    }
    KVB_RETURN_IF_ERROR(rope::Validate(params, head_dim, field));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const std::string& field, const TensorRef& tensor,
                         const std::vector<int64_t>& shape) {
  if (tensor.dtype != tensor::DType::kBf16 && tensor.dtype != tensor::DType::kF32) {
    return Mismatch(field + ".dtype", "bf16 or f32", tensor::Name(tensor.dtype));
  }
  if (tensor.shape != shape) {
    return Mismatch(field + ".shape", ShapeText(shape), ShapeText(tensor.shape));
  }
  uint64_t bytes = tensor::ByteSize(tensor.dtype);
  for (int64_t dim : shape) {
    if (!base::CheckedMul(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return Mismatch(field + ".shape", "a size that fits 64 bits", ShapeText(shape));
    }
  }
  if (tensor.data.size() != bytes) {
    return Mismatch(field + ".data", absl::StrCat(bytes, " bytes"), tensor.data.size());
  }
  return absl::OkStatus();
}

absl::Status CheckSources(const std::string& field, const std::vector<int32_t>& layers,
                          const KvGeometry& source) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const int32_t layer = layers[i];
    if (layer < 0 || layer >= source.layers) {
      return Mismatch(absl::StrCat(field, "[", i, "]"),
                      absl::StrCat("a layer below ", source.layers), layer);
    }
    if (std::find(layers.begin(), layers.begin() + i, layer) != layers.begin() + i) {
      return Mismatch(absl::StrCat(field, "[", i, "]"), "each layer once",
                      absl::StrCat(layer, " again"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHeadSource(const std::string& field, const LayerMap& map,
                             const KvGeometry& source, const KvGeometry& target) {
  const auto& heads = map.head_source;
  if (map.support != Support::kHeadLocal) {
    return heads.empty() ? absl::OkStatus()
                         : Mismatch(field, absl::StrCat("none for ", Name(map.support), " support"),
                                    heads.size());
  }
  if (heads.empty()) {
    if (source.kv_heads == target.kv_heads) return absl::OkStatus();
    return Mismatch(field,
                    absl::StrCat(target.kv_heads, " entries (head counts differ: ", source.kv_heads,
                                 " and ", target.kv_heads, ")"),
                    "none");
  }
  KVB_RETURN_IF_ERROR(CheckCount(field, target.kv_heads, heads.size()));
  for (size_t i = 0; i < heads.size(); ++i) {
    if (heads[i] < 0 || heads[i] >= source.kv_heads) {
      return Mismatch(absl::StrCat(field, "[", i, "]"),
                      absl::StrCat("a head below ", source.kv_heads), heads[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNetwork(const std::string& path, const LayerMap& map, const KvGeometry& source,
                          const KvGeometry& target) {
  const auto layers = static_cast<int64_t>(map.hidden.size());
  if (layers > kMaxHiddenLayers || (layers == 0 && map.support == Support::kMlp)) {
    return Mismatch(path + ".hidden",
                    absl::StrCat(map.support == Support::kMlp ? 1 : 0, " to ", kMaxHiddenLayers,
                                 " layers for ", Name(map.support), " support"),
                    layers);
  }
  if (layers == 0) {
    return map.out.shape.empty()
               ? absl::OkStatus()
               : Mismatch(path + ".out", "none without hidden layers", ShapeText(map.out.shape));
  }
  int64_t inputs = map.inputs(source);
  for (int64_t i = 0; i < layers; ++i) {
    const std::string field = absl::StrCat(path, ".hidden[", i, "]");
    const int64_t width = map.hidden[i].width();
    if (width < 1 || width > kMaxHiddenWidth) {
      return Mismatch(field + ".width", absl::StrCat("1 to ", kMaxHiddenWidth), width);
    }
    KVB_RETURN_IF_ERROR(CheckTensor(field + ".weight", map.hidden[i].weight, {inputs, width}));
    KVB_RETURN_IF_ERROR(CheckTensor(field + ".bias", map.hidden[i].bias, {width}));
    inputs = width;
  }
  return CheckTensor(path + ".out", map.out, {target.kv_heads, inputs, target.head_dim});
}

absl::Status CheckLayers(absl::string_view name, const std::vector<LayerMap>& layers,
                         const KvGeometry& source, const KvGeometry& target) {
  KVB_RETURN_IF_ERROR(CheckCount(name, target.layers, layers.size()));
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerMap& map = layers[l];
    const std::string path = absl::StrCat(name, "[", l, "]");
    if (map.plane_count() == 0) {
      return Mismatch(path + ".sources", "at least one source layer", "none");
    }
    KVB_RETURN_IF_ERROR(CheckSources(path + ".sources", map.sources, source));
    KVB_RETURN_IF_ERROR(CheckSources(path + ".cross_sources", map.cross_sources, source));
    KVB_RETURN_IF_ERROR(CheckHeadSource(path + ".head_source", map, source, target));
    KVB_RETURN_IF_ERROR(CheckTensor(path + ".weight", map.weight,
                                    {target.kv_heads, map.features(source), target.head_dim}));
    KVB_RETURN_IF_ERROR(CheckTensor(path + ".bias", map.bias, {target.kv_heads, target.head_dim}));
    KVB_RETURN_IF_ERROR(CheckNetwork(path, map, source, target));
  }
  return absl::OkStatus();
}

// [target_layers][width] finite numbers.
absl::Status CheckTable(absl::string_view name, const std::vector<std::vector<float>>& table,
                        int32_t layers, int32_t width) {
  KVB_RETURN_IF_ERROR(CheckCount(name, layers, table.size()));
  for (size_t l = 0; l < table.size(); ++l) {
    const std::string row = absl::StrCat(name, "[", l, "]");
    KVB_RETURN_IF_ERROR(CheckCount(row, width, table[l].size()));
    for (size_t i = 0; i < table[l].size(); ++i) {
      if (!std::isfinite(table[l][i])) {
        return Mismatch(absl::StrCat(row, "[", i, "]"), "a finite number", table[l][i]);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKeyNorm(const KeyNorm& norm, const KvGeometry& target) {
  switch (norm.kind) {
    case KeyNorm::Kind::kNone:
      return absl::OkStatus();
    case KeyNorm::Kind::kScale:
      KVB_RETURN_IF_ERROR(
          CheckTable("key_norm.key_scale", norm.key_scale, target.layers, target.kv_heads));
      return CheckTable("key_norm.value_scale", norm.value_scale, target.layers, target.kv_heads);
    case KeyNorm::Kind::kKNorm:
      break;
  }
  if (!std::isfinite(norm.eps) || norm.eps <= 0) {
    return Mismatch("key_norm.eps", "a finite number above 0", norm.eps);
  }
  KVB_RETURN_IF_ERROR(CheckTable("key_norm.gamma", norm.gamma, target.layers, target.head_dim));
  for (size_t l = 0; l < norm.gamma.size(); ++l) {
    const auto& gamma = norm.gamma[l];
    if (std::all_of(gamma.begin(), gamma.end(), [](float g) { return g == 0; })) {
      return Mismatch(absl::StrCat("key_norm.gamma[", l, "]"), "a weight other than 0", "only 0");
    }
  }
  return absl::OkStatus();
}

// Weights without biases: each is one multiply-add of a token.
int64_t Products(const LayerMap& map, const KvGeometry& source, int64_t columns) {
  int64_t total = columns * map.features(source);
  int64_t inputs = map.inputs(source);
  for (const HiddenLayer& layer : map.hidden) {
    total += inputs * layer.width();
    inputs = layer.width();
  }
  return map.hidden.empty() ? total : total + inputs * columns;
}

}  // namespace

absl::string_view Name(Support support) {
  switch (support) {
    case Support::kFull:
      return "full";
    case Support::kHeadLocal:
      return "head_local";
    case Support::kMlp:
      return "mlp";
  }
  return "unknown";
}

std::string Describe(const LayerMap& map) {
  const std::string widths = absl::StrJoin(
      map.hidden, ", ",
      [](std::string* out, const HiddenLayer& layer) { absl::StrAppend(out, layer.width()); });
  if (widths.empty()) return std::string(Name(map.support));
  return absl::StrCat(Name(map.support), map.support == Support::kMlp ? " " : " + ", widths);
}

std::vector<SourcePlane> LayerMap::planes(kv::Component own) const {
  const auto other = own == kv::Component::kKey ? kv::Component::kValue : kv::Component::kKey;
  std::vector<SourcePlane> planes;
  for (const int32_t layer : sources) planes.push_back({layer, own});
  for (const int32_t layer : cross_sources) planes.push_back({layer, other});
  return planes;
}

int64_t Mapper::parameters() const {
  const int64_t columns = target.geometry.row();
  int64_t total = 0;
  for (const auto* component : {&keys, &values}) {
    for (const LayerMap& map : *component) {
      total += Products(map, source.geometry, columns) + columns;
      for (const HiddenLayer& layer : map.hidden) total += layer.width();
    }
  }
  return total;
}

double Mapper::flops_per_token() const {
  double total = 0;
  for (const auto* component : {&keys, &values}) {
    for (const LayerMap& map : *component) {
      total += 2.0 * double(Products(map, source.geometry, target.geometry.row()));
    }
  }
  return total;
}

absl::Status Validate(const Mapper& mapper) {
  const KvGeometry& source = mapper.source.geometry;
  const KvGeometry& target = mapper.target.geometry;
  KVB_RETURN_IF_ERROR(CheckGeometry("source.geometry", source));
  KVB_RETURN_IF_ERROR(CheckGeometry("target.geometry", target));
  if (mapper.strip_rope) {
    KVB_RETURN_IF_ERROR(CheckRope("source", mapper.source));
    KVB_RETURN_IF_ERROR(CheckRope("target", mapper.target));
  }
  KVB_RETURN_IF_ERROR(CheckLayers("keys", mapper.keys, source, target));
  KVB_RETURN_IF_ERROR(CheckLayers("values", mapper.values, source, target));
  if (mapper.key_norm.kind == KeyNorm::Kind::kKNorm && !mapper.strip_rope) {
    // A norm over pairs of dimensions does not survive rotation unless gamma is constant.
    return Mismatch("key_norm.kind", "none or scale when keys are mapped as cached", "k_norm");
  }
  return CheckKeyNorm(mapper.key_norm, target);
}

}  // namespace kvbridge::mapper
