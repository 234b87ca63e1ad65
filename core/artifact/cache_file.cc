#include "core/artifact/cache_file.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/artifact/safetensors.h"
#include "core/artifact/safetensors_writer.h"
#include "core/artifact/spec_json.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "core/kv/positions.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr char kFormat[] = "kvbridge-cache";
constexpr char kSchema[] = "1";

constexpr std::pair<tensor::DType, StDType> kDTypes[] = {
    {tensor::DType::kBf16, StDType::kBf16},
    {tensor::DType::kF16, StDType::kF16},
    {tensor::DType::kF32, StDType::kF32},
    {tensor::DType::kF8E4M3, StDType::kF8E4M3}};

StDType ContainerDType(tensor::DType dtype) {
  for (const auto& [cache, container] : kDTypes) {
    if (cache == dtype) return container;
  }
  return StDType::kU8;
}

absl::Status Bad(absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("cache file: ", problem));
}

absl::StatusOr<Json> JsonMember(const SafeTensors& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it == file.metadata().end()) return Bad(absl::StrCat("metadata ", key, " is missing"));
  return base::ParseStrictJson(it->second, key);
}

absl::StatusOr<model::ModelSpec> ReadSpec(const SafeTensors& file) {
  for (const auto& [key, value] : {std::pair("format", kFormat), std::pair("schema", kSchema)}) {
    const auto it = file.metadata().find(key);
    if (it == file.metadata().end() || it->second != value) {
      return Bad(absl::StrCat("metadata ", key, ": expected \"", value, "\", got ",
                              it == file.metadata().end()
                                  ? "nothing"
                                  : absl::StrCat("\"", it->second.substr(0, 40), "\"")));
    }
  }
  model::ModelSpec spec;
  KVB_ASSIGN_OR_RETURN(const Json identity, JsonMember(file, "identity"));
  KVB_ASSIGN_OR_RETURN(spec.identity, IdentityFromJson(identity, "identity"));
  KVB_ASSIGN_OR_RETURN(const Json geometry, JsonMember(file, "geometry"));
  KVB_ASSIGN_OR_RETURN(spec.geometry, GeometryFromJson(geometry, "geometry"));
  KVB_ASSIGN_OR_RETURN(const Json rope, JsonMember(file, "rope"));
  KVB_ASSIGN_OR_RETURN(spec.rope, RopeFromJson(rope, "rope"));
  return spec;
}

absl::StatusOr<std::vector<int64_t>> ReadIntegers(const SafeTensors& file, const std::string& name,
                                                  int64_t tokens) {
  KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name, StDType::kI64, {tokens}));
  std::vector<int64_t> values(static_cast<size_t>(tokens));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

// [layers, kv_heads] F32, one row per layer of the view.
absl::Status ReadScales(const SafeTensors& file, CacheFile* cache) {
  const model::KvGeometry& geometry = cache->spec.geometry;
  for (const auto& [name, component] : {std::pair("key_scales", kv::Component::kKey),
                                        std::pair("value_scales", kv::Component::kValue)}) {
    KVB_ASSIGN_OR_RETURN(const StTensor* tensor,
                         file.Find(name, StDType::kF32, {geometry.layers, geometry.kv_heads}));
    const size_t row_bytes = static_cast<size_t>(geometry.kv_heads) * sizeof(float);
    for (int32_t l = 0; l < geometry.layers; ++l) {
      std::vector<float>& scales = cache->view.plane(l, component).scales;
      scales.resize(static_cast<size_t>(geometry.kv_heads));
      std::memcpy(scales.data(), tensor->data.data() + l * row_bytes, row_bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseOthers(const SafeTensors& file, bool fp8) {
  for (const auto& [name, tensor] : file.tensors()) {
    const bool known = name == "keys" || name == "values" || name == "positions" ||
                       name == "token_ids" ||
                       (fp8 && (name == "key_scales" || name == "value_scales"));
    if (!known) return Bad(absl::StrCat("unknown tensor \"", name.substr(0, 80), "\""));
  }
  return absl::OkStatus();
}

// K or V as one dense head-major buffer.
std::vector<std::byte> DenseComponent(const kv::KvView& view, kv::Component component) {
  const size_t head_bytes = static_cast<size_t>(view.head_dim) * tensor::ByteSize(view.dtype);
  std::vector<std::byte> out(static_cast<size_t>(view.layers) * view.kv_heads * view.tokens *
                             head_bytes);
  std::byte* at = out.data();
  for (int32_t l = 0; l < view.layers; ++l) {
    const int64_t head_stride = view.plane(l, component).head_stride;
    for (int32_t h = 0; h < view.kv_heads; ++h) {
      for (int64_t t = 0; t < view.tokens; ++t, at += head_bytes) {
        std::memcpy(at, view.Row(l, component, t) + h * head_stride, head_bytes);
      }
    }
  }
  return out;
}

std::vector<float> DenseScales(const kv::KvView& view, kv::Component component) {
  std::vector<float> out;
  for (int32_t l = 0; l < view.layers; ++l) {
    for (int32_t h = 0; h < view.kv_heads; ++h) out.push_back(view.Scale(l, component, h));
  }
  return out;
}

absl::Status CheckForWriting(const CacheFile& cache) {
  const model::KvGeometry& geometry = cache.spec.geometry;
  const kv::KvView& view = cache.view;
  KVB_RETURN_IF_ERROR(kv::Validate(view));
  if (view.layers != geometry.layers || view.kv_heads != geometry.kv_heads ||
      view.head_dim != geometry.head_dim || view.dtype != geometry.dtype) {
    return Bad("the view's shape differs from the geometry's");
  }
  const auto tokens = static_cast<size_t>(view.tokens);
  if (cache.positions.size() != tokens ||
      (!cache.token_ids.empty() && cache.token_ids.size() != tokens)) {
    return Bad(absl::StrCat("expected ", tokens, " positions and no or as many token ids, got ",
                            cache.positions.size(), " and ", cache.token_ids.size()));
  }
  return kv::Positions::Create(cache.positions, cache.spec.rope.max_position).status();
}

}  // namespace

absl::StatusOr<CacheFile> ReadCacheFile(const std::filesystem::path& path) {
  KVB_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> map,
                       base::MappedFile::Open(path));
  KVB_ASSIGN_OR_RETURN(const SafeTensors file,
                       SafeTensors::Parse(map->bytes(), path.filename().string()));
  CacheFile cache;
  KVB_ASSIGN_OR_RETURN(cache.spec, ReadSpec(file));
  const model::KvGeometry& geometry = cache.spec.geometry;
  KVB_ASSIGN_OR_RETURN(const StTensor* positions, file.Find("positions"));
  const int64_t tokens = positions->elements();
  if (tokens == 0) return Bad("positions: expected at least one token");
  KVB_ASSIGN_OR_RETURN(cache.positions, ReadIntegers(file, "positions", tokens));
  KVB_RETURN_IF_ERROR(
      kv::Positions::Create(cache.positions, cache.spec.rope.max_position).status());
  if (file.tensors().count("token_ids") != 0) {
    KVB_ASSIGN_OR_RETURN(cache.token_ids, ReadIntegers(file, "token_ids", tokens));
  }
  const StDType dtype = ContainerDType(geometry.dtype);
  const std::vector<int64_t> shape = {geometry.layers, geometry.kv_heads, tokens,
                                      geometry.head_dim};
  KVB_ASSIGN_OR_RETURN(const StTensor* keys, file.Find("keys", dtype, shape));
  KVB_ASSIGN_OR_RETURN(const StTensor* values, file.Find("values", dtype, shape));
  cache.view = kv::DenseHeadMajorView(
      const_cast<std::byte*>(keys->data.data()), const_cast<std::byte*>(values->data.data()),
      geometry.dtype, geometry.layers, tokens, geometry.kv_heads, geometry.head_dim);
  const bool fp8 = geometry.dtype == tensor::DType::kF8E4M3;
  if (fp8) KVB_RETURN_IF_ERROR(ReadScales(file, &cache));
  KVB_RETURN_IF_ERROR(RefuseOthers(file, fp8));
  KVB_RETURN_IF_ERROR(kv::Validate(cache.view));
  cache.storage = map;
  return cache;
}

absl::Status WriteCacheFile(const std::filesystem::path& path, const CacheFile& cache) {
  KVB_RETURN_IF_ERROR(CheckForWriting(cache));
  const kv::KvView& view = cache.view;
  const StDType dtype = ContainerDType(view.dtype);
  const std::vector<int64_t> shape = {view.layers, view.kv_heads, view.tokens, view.head_dim};
  const std::vector<std::byte> keys = DenseComponent(view, kv::Component::kKey);
  const std::vector<std::byte> values = DenseComponent(view, kv::Component::kValue);
  const std::vector<float> key_scales = DenseScales(view, kv::Component::kKey);
  const std::vector<float> value_scales = DenseScales(view, kv::Component::kValue);
  std::map<std::string, StTensor> tensors = {
      {"keys", {dtype, shape, keys}},
      {"values", {dtype, shape, values}},
      {"positions", {StDType::kI64, {view.tokens}, std::as_bytes(std::span(cache.positions))}}};
  if (!cache.token_ids.empty()) {
    tensors["token_ids"] = {
        StDType::kI64, {view.tokens}, std::as_bytes(std::span(cache.token_ids))};
  }
  if (view.dtype == tensor::DType::kF8E4M3) {
    const std::vector<int64_t> scale_shape = {view.layers, view.kv_heads};
    tensors["key_scales"] = {StDType::kF32, scale_shape, std::as_bytes(std::span(key_scales))};
    tensors["value_scales"] = {StDType::kF32, scale_shape, std::as_bytes(std::span(value_scales))};
  }
  return WriteSafeTensors(path, tensors,
                          {{"format", kFormat},
                           {"schema", kSchema},
                           {"identity", base::CanonicalJson(IdentityToJson(cache.spec.identity))},
                           {"geometry", base::CanonicalJson(GeometryToJson(cache.spec.geometry))},
                           {"rope", base::CanonicalJson(RopeToJson(cache.spec.rope))}});
}

}  // namespace kvbridge::artifact
