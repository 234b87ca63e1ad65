#include "core/artifact/weights.h"

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::artifact {
namespace {

using Kind = mapper::KeyNorm::Kind;

tensor::DType TensorDType(StDType dtype) {
  return dtype == StDType::kF32 ? tensor::DType::kF32 : tensor::DType::kBf16;
}

// Looks tensors up and remembers which were asked for.
class TensorTable {
 public:
  explicit TensorTable(const SafeTensors& file) : file_(file) {}

  absl::StatusOr<const StTensor*> Take(const std::string& name, StDType dtype,
                                       const std::vector<int64_t>& shape) {
    taken_.insert(name);
    return file_.Find(name, dtype, shape);
  }
  absl::Status RefuseRest() const {
    for (const auto& [name, tensor] : file_.tensors()) {
      if (taken_.count(name) == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor \"", absl::Utf8SafeCEscape(name.substr(0, 80)), "\" is not in the manifest"));
      }
    }
    return absl::OkStatus();
  }

 private:
  const SafeTensors& file_;
  std::set<std::string> taken_;
};

// Takes the tensors of one type that a manifest promises.
class Promised {
 public:
  Promised(TensorTable* table, StDType dtype) : table_(table), dtype_(dtype) {}

  tensor::DType dtype() const { return TensorDType(dtype_); }

  absl::Status Take(const std::string& name, std::vector<int64_t> shape, mapper::TensorRef* out) {
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor, table_->Take(name, dtype_, shape));
    *out = {TensorDType(dtype_), std::move(shape), tensor->data};
    return absl::OkStatus();
  }

 private:
  TensorTable* const table_;
  const StDType dtype_;
};

absl::StatusOr<mapper::LayerMap> TakeLayer(Promised promised, const Manifest& manifest,
                                           const LayerLists& lists, const std::string& component,
                                           int layer) {
  const model::KvGeometry& source = manifest.source.geometry;
  const model::KvGeometry& target = manifest.target.geometry;
  mapper::LayerMap map{.support = lists.support,
                       .sources = lists.sources,
                       .cross_sources = lists.cross_sources,
                       .head_source = lists.head_source};
  map.weight.dtype = promised.dtype();
  map.weight.shape = {target.kv_heads, map.features(source), target.head_dim};
  if (map.features(source) > 0) {
    KVB_RETURN_IF_ERROR(
        promised.Take(absl::StrCat(component, "_weight.", layer), map.weight.shape, &map.weight));
  }
  KVB_RETURN_IF_ERROR(promised.Take(absl::StrCat(component, "_bias.", layer),
                                    {target.kv_heads, target.head_dim}, &map.bias));
  int64_t inputs = map.inputs(source);
  for (const int32_t width : lists.hidden) {
    const std::string at = absl::StrCat(layer, ".", map.hidden.size());
    mapper::HiddenLayer& hidden = map.hidden.emplace_back();
    KVB_RETURN_IF_ERROR(
        promised.Take(absl::StrCat(component, "_hidden.", at), {inputs, width}, &hidden.weight));
    KVB_RETURN_IF_ERROR(
        promised.Take(absl::StrCat(component, "_hidden_bias.", at), {width}, &hidden.bias));
    inputs = width;
  }
  if (!lists.hidden.empty()) {
    KVB_RETURN_IF_ERROR(promised.Take(absl::StrCat(component, "_out.", layer),
                                      {target.kv_heads, inputs, target.head_dim}, &map.out));
  }
  return map;
}

// One row per target layer of the F32 tensors `name`.{l}.
absl::StatusOr<std::vector<std::vector<float>>> TakeRows(TensorTable* table, absl::string_view name,
                                                         int layers, int64_t width) {
  std::vector<std::vector<float>> rows;
  for (int l = 0; l < layers; ++l) {
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor,
                         table->Take(absl::StrCat(name, ".", l), StDType::kF32, {width}));
    std::vector<float>& row = rows.emplace_back(width);
    std::memcpy(row.data(), tensor->data.data(), tensor->data.size());
  }
  return rows;
}

StTensor RowTensor(const std::vector<float>& row) {
  return {StDType::kF32, {static_cast<int64_t>(row.size())}, std::as_bytes(std::span(row))};
}

LayerLists ListsOf(const mapper::LayerMap& map) {
  LayerLists lists{map.support, map.sources, map.cross_sources, map.head_source};
  for (const mapper::HiddenLayer& layer : map.hidden) {
    lists.hidden.push_back(static_cast<int32_t>(layer.width()));
  }
  return lists;
}

// Its tensors under the rest of their names: after "key" or "value".
std::vector<std::pair<std::string, const mapper::TensorRef*>> TensorsOf(const mapper::LayerMap& map,
                                                                        size_t layer) {
  std::vector<std::pair<std::string, const mapper::TensorRef*>> tensors;
  const auto add = [&](absl::string_view part, const std::string& at,
                       const mapper::TensorRef& ref) {
    tensors.emplace_back(absl::StrCat(part, at), &ref);
  };
  const std::string at = absl::StrCat(layer);
  if (map.support != mapper::Support::kMlp) add("_weight.", at, map.weight);
  add("_bias.", at, map.bias);
  for (size_t i = 0; i < map.hidden.size(); ++i) {
    add("_hidden.", absl::StrCat(at, ".", i), map.hidden[i].weight);
    add("_hidden_bias.", absl::StrCat(at, ".", i), map.hidden[i].bias);
  }
  if (!map.hidden.empty()) add("_out.", at, map.out);
  return tensors;
}

}  // namespace

absl::StatusOr<StDType> WeightsDType(tensor::DType dtype) {
  if (dtype == tensor::DType::kBf16) return StDType::kBf16;
  if (dtype == tensor::DType::kF32) return StDType::kF32;
  return absl::InvalidArgumentError(
      absl::StrCat("weights: expected bf16 or f32, got ", tensor::Name(dtype)));
}

absl::StatusOr<mapper::Mapper> AssembleMapper(const Manifest& manifest, const SafeTensors& file,
                                              StDType dtype, std::shared_ptr<const void> storage) {
  mapper::Mapper mapper{.source = manifest.source,
                        .target = manifest.target,
                        .strip_rope = manifest.strip_rope,
                        .storage = std::move(storage)};
  TensorTable table(file);
  const Promised promised(&table, dtype);
  const int layers = static_cast<int>(manifest.layers.size());
  for (int l = 0; l < layers; ++l) {
    const LayerEntry& entry = manifest.layers[l];
    KVB_ASSIGN_OR_RETURN(mapper::LayerMap key, TakeLayer(promised, manifest, entry.key, "key", l));
    KVB_ASSIGN_OR_RETURN(mapper::LayerMap value,
                         TakeLayer(promised, manifest, entry.value, "value", l));
    mapper.keys.push_back(std::move(key));
    mapper.values.push_back(std::move(value));
  }
  mapper::KeyNorm& norm = mapper.key_norm;
  norm.kind = manifest.key_norm;
  norm.eps = manifest.key_norm_eps;
  const model::KvGeometry& target = manifest.target.geometry;
  if (norm.kind == Kind::kKNorm) {
    KVB_ASSIGN_OR_RETURN(norm.gamma, TakeRows(&table, "key_norm", layers, target.head_dim));
  }
  if (norm.kind == Kind::kScale) {
    KVB_ASSIGN_OR_RETURN(norm.key_scale, TakeRows(&table, "key_scale", layers, target.kv_heads));
    KVB_ASSIGN_OR_RETURN(norm.value_scale,
                         TakeRows(&table, "value_scale", layers, target.kv_heads));
  }
  KVB_RETURN_IF_ERROR(table.RefuseRest());
  KVB_RETURN_IF_ERROR(mapper::Validate(mapper));
  return mapper;
}

absl::StatusOr<std::map<std::string, StTensor>> WeightTensors(const mapper::Mapper& mapper) {
  std::map<std::string, StTensor> tensors;
  for (size_t l = 0; l < mapper.keys.size(); ++l) {
    for (const auto& [component, map] :
         {std::pair("key", &mapper.keys[l]), std::pair("value", &mapper.values[l])}) {
      for (const auto& [part, ref] : TensorsOf(*map, l)) {
        KVB_ASSIGN_OR_RETURN(const StDType dtype, WeightsDType(ref->dtype));
        tensors.emplace(absl::StrCat(component, part), StTensor{dtype, ref->shape, ref->data});
      }
    }
  }
  const auto add_rows = [&](absl::string_view name, const std::vector<std::vector<float>>& rows) {
    for (size_t l = 0; l < rows.size(); ++l) {
      tensors.emplace(absl::StrCat(name, ".", l), RowTensor(rows[l]));
    }
  };
  if (mapper.key_norm.kind == Kind::kKNorm) add_rows("key_norm", mapper.key_norm.gamma);
  if (mapper.key_norm.kind == Kind::kScale) {
    add_rows("key_scale", mapper.key_norm.key_scale);
    add_rows("value_scale", mapper.key_norm.value_scale);
  }
  return tensors;
}

Manifest ManifestOf(const mapper::Mapper& mapper, Provenance provenance) {
  Manifest manifest{.source = mapper.source,
                    .target = mapper.target,
                    .strip_rope = mapper.strip_rope,
                    .key_norm = mapper.key_norm.kind,
                    .key_norm_eps = mapper.key_norm.eps,
                    .provenance = std::move(provenance)};
  for (size_t l = 0; l < mapper.keys.size(); ++l) {
    manifest.layers.push_back({ListsOf(mapper.keys[l]), ListsOf(mapper.values[l])});
  }
  return manifest;
}

}  // namespace kvbridge::artifact
