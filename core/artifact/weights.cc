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

absl::StatusOr<mapper::LayerMap> TakeLayer(TensorTable* table, const Manifest& manifest,
                                           const LayerLists& lists, absl::string_view component,
                                           int layer, StDType dtype) {
  const model::KvGeometry& target = manifest.target.geometry;
  mapper::LayerMap map{.support = lists.support,
                       .sources = lists.sources,
                       .cross_sources = lists.cross_sources,
                       .head_source = lists.head_source};
  const std::vector<int64_t> weight_shape = {
      target.kv_heads, map.features(manifest.source.geometry), target.head_dim};
  const std::vector<int64_t> bias_shape = {target.kv_heads, target.head_dim};
  KVB_ASSIGN_OR_RETURN(
      const StTensor* weight,
      table->Take(absl::StrCat(component, "_weight.", layer), dtype, weight_shape));
  KVB_ASSIGN_OR_RETURN(const StTensor* bias,
                       table->Take(absl::StrCat(component, "_bias.", layer), dtype, bias_shape));
  map.weight = {TensorDType(dtype), weight->shape, weight->data};
  map.bias = {TensorDType(dtype), bias->shape, bias->data};
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
  return {map.support, map.sources, map.cross_sources, map.head_source};
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
  const int layers = static_cast<int>(manifest.layers.size());
  for (int l = 0; l < layers; ++l) {
    const LayerEntry& entry = manifest.layers[l];
    KVB_ASSIGN_OR_RETURN(mapper::LayerMap key,
                         TakeLayer(&table, manifest, entry.key, "key", l, dtype));
    KVB_ASSIGN_OR_RETURN(mapper::LayerMap value,
                         TakeLayer(&table, manifest, entry.value, "value", l, dtype));
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
      for (const auto& [part, ref] :
           {std::pair("_weight.", &map->weight), std::pair("_bias.", &map->bias)}) {
        KVB_ASSIGN_OR_RETURN(const StDType dtype, WeightsDType(ref->dtype));
        tensors.emplace(absl::StrCat(component, part, l), StTensor{dtype, ref->shape, ref->data});
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
