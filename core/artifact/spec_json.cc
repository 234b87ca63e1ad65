#include "core/artifact/spec_json.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr int64_t kMaxCount = 4096;  // layers, heads, head_dim, ranks: the proto's documented bound

constexpr std::pair<absl::string_view, tensor::DType> kElementTypes[] = {
    {"ELEMENT_TYPE_BF16", tensor::DType::kBf16},
    {"ELEMENT_TYPE_F16", tensor::DType::kF16},
    {"ELEMENT_TYPE_F32", tensor::DType::kF32},
    {"ELEMENT_TYPE_F8_E4M3", tensor::DType::kF8E4M3}};
constexpr std::pair<absl::string_view, model::AttentionKind> kAttentionKinds[] = {
    {"ATTENTION_KIND_FULL", model::AttentionKind::kFull},
    {"ATTENTION_KIND_SLIDING", model::AttentionKind::kSliding},
    {"ATTENTION_KIND_MLA", model::AttentionKind::kMla},
    {"ATTENTION_KIND_SSM", model::AttentionKind::kSsm},
    {"ATTENTION_KIND_SHARED_KV", model::AttentionKind::kSharedKv},
    {"ATTENTION_KIND_UNSPECIFIED", model::AttentionKind::kUnknown}};
constexpr std::pair<absl::string_view, model::Pairing> kPairings[] = {
    {"PAIRING_HALF", model::Pairing::kHalf}, {"PAIRING_INTERLEAVED", model::Pairing::kInterleaved}};

constexpr std::pair<absl::string_view, std::string model::ModelIdentity::*> kIdentityFields[] = {
    {"family", &model::ModelIdentity::family},
    {"model_id", &model::ModelIdentity::model_id},
    {"revision", &model::ModelIdentity::revision},
    {"tokenizer_sha256", &model::ModelIdentity::tokenizer_sha256},
    {"chat_template_sha256", &model::ModelIdentity::chat_template_sha256},
    {"adapter_digest", &model::ModelIdentity::adapter_digest},
    {"modality_digest", &model::ModelIdentity::modality_digest}};

template <typename Table, typename Value>
std::string NameIn(const Table& table, Value value) {
  for (const auto& [name, known] : table) {
    if (known == value) return std::string(name);
  }
  return "";
}

template <typename Value, size_t N>
absl::StatusOr<Value> ValueIn(const std::pair<absl::string_view, Value> (&table)[N],
                              const Json& word, absl::string_view path) {
  for (const auto& [name, value] : table) {
    if (word.is_string() && word.get_ref<const std::string&>() == name) return value;
  }
  std::string known;
  for (const auto& row : table) absl::StrAppend(&known, known.empty() ? "" : ", ", row.first);
  return absl::InvalidArgumentError(absl::StrCat(path, ": expected one of ", known, ", got ",
                                                 word.dump(-1, ' ', true).substr(0, 80)));
}

absl::StatusOr<int64_t> IntOr(const Json& object, absl::string_view key, absl::string_view path,
                              int64_t fallback, int64_t min, int64_t max) {
  const auto it = object.find(std::string(key));
  if (it == object.end()) return fallback;
  int64_t from_text = 0;
  if (it->is_string() && absl::SimpleAtoi(it->get_ref<const std::string&>(), &from_text)) {
    return base::GetInt(Json{{std::string(key), from_text}}, key, path, min, max);
  }
  return base::GetInt(object, key, path, min, max);
}

absl::StatusOr<std::string> StringOrEmpty(const Json& object, absl::string_view key,
                                          absl::string_view path) {
  if (!object.contains(std::string(key))) return std::string();
  return base::GetString(object, key, path);
}

// An absent list is empty.
absl::StatusOr<Json> ListOrEmpty(const Json& object, absl::string_view key,
                                 absl::string_view path) {
  if (!object.contains(std::string(key))) return Json::array();
  KVB_ASSIGN_OR_RETURN(const Json* list, base::GetArray(object, key, path));
  return *list;
}

absl::Status WantObject(const Json& json, absl::string_view path) {
  if (json.is_object()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": expected an object, got ", json.type_name()));
}

Json ParamsToJson(const model::RopeParams& params) {
  return {{"inv_freq", params.inv_freq},
          {"attention_factor", params.attention_factor},
          {"rotary_dim", params.rotary_dim},
          {"pairing", NameIn(kPairings, params.pairing)}};
}

absl::StatusOr<model::RopeParams> ParamsFromJson(const Json& json, absl::string_view path) {
  KVB_RETURN_IF_ERROR(WantObject(json, path));
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      json, {"inv_freq", "attention_factor", "rotary_dim", "pairing"}, path));
  model::RopeParams params;
  KVB_ASSIGN_OR_RETURN(const int64_t dim, IntOr(json, "rotary_dim", path, 0, 0, kMaxCount));
  params.rotary_dim = static_cast<int32_t>(dim);
  if (json.contains("attention_factor")) {
    KVB_ASSIGN_OR_RETURN(const double factor, base::GetFinite(json, "attention_factor", path));
    if (factor < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".attention_factor: expected at least 0, got ", factor));
    }
    if (factor > 0) params.attention_factor = factor;
  }
  if (json.contains("pairing")) {
    KVB_ASSIGN_OR_RETURN(params.pairing,
                         ValueIn(kPairings, json["pairing"], absl::StrCat(path, ".pairing")));
  } else if (dim > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".pairing: expected PAIRING_HALF or PAIRING_INTERLEAVED, got nothing"));
  }
  KVB_ASSIGN_OR_RETURN(const Json inv_freq, ListOrEmpty(json, "inv_freq", path));
  for (const Json& item : inv_freq) {
    if (!item.is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".inv_freq: expected numbers, got ", item.type_name()));
    }
    params.inv_freq.push_back(item.get<double>());
  }
  if (dim % 2 != 0 || static_cast<int64_t>(params.inv_freq.size()) != dim / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".inv_freq: expected half of an even rotary_dim of ", dim, ", got ",
                     params.inv_freq.size(), " numbers"));
  }
  return params;
}

}  // namespace

Json IdentityToJson(const model::ModelIdentity& identity) {
  Json json = Json::object();
  for (const auto& [name, field] : kIdentityFields) json[std::string(name)] = identity.*field;
  return json;
}

Json GeometryToJson(const model::KvGeometry& geometry) {
  Json attention = Json::array();
  for (const model::AttentionKind kind : geometry.attention) {
    attention.push_back(NameIn(kAttentionKinds, kind));
  }
  return {
      {"layers", geometry.layers},         {"kv_heads", geometry.kv_heads},
      {"head_dim", geometry.head_dim},     {"element_type", NameIn(kElementTypes, geometry.dtype)},
      {"attention", std::move(attention)}, {"head_order", geometry.head_order},
      {"tp_degree", geometry.tp_degree},   {"tp_rank", geometry.tp_rank}};
}

Json RopeToJson(const model::RopeSpec& rope) {
  Json overrides = Json::object();
  for (const auto& [layer, params] : rope.layer_overrides) {
    overrides[absl::StrCat(layer)] = ParamsToJson(params);
  }
  return {{"params", ParamsToJson(rope.params)},
          {"layer_overrides", std::move(overrides)},
          {"max_position", rope.max_position}};
}

Json SpecToJson(const model::ModelSpec& spec) {
  return {{"identity", IdentityToJson(spec.identity)},
          {"geometry", GeometryToJson(spec.geometry)},
          {"rope", RopeToJson(spec.rope)}};
}

absl::StatusOr<model::ModelIdentity> IdentityFromJson(const Json& json, absl::string_view path) {
  KVB_RETURN_IF_ERROR(WantObject(json, path));
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(json,
                              {"family", "model_id", "revision", "tokenizer_sha256",
                               "chat_template_sha256", "adapter_digest", "modality_digest"},
                              path));
  model::ModelIdentity identity;
  for (const auto& [name, field] : kIdentityFields) {
    KVB_ASSIGN_OR_RETURN(identity.*field, StringOrEmpty(json, name, path));
  }
  return identity;
}

absl::StatusOr<model::KvGeometry> GeometryFromJson(const Json& json, absl::string_view path) {
  KVB_RETURN_IF_ERROR(WantObject(json, path));
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(json,
                                              {"layers", "kv_heads", "head_dim", "element_type",
                                               "attention", "head_order", "tp_degree", "tp_rank"},
                                              path));
  model::KvGeometry geometry;
  const auto read = [&](absl::string_view key, int64_t fallback, int64_t min,
                        int32_t* out) -> absl::Status {
    KVB_ASSIGN_OR_RETURN(const int64_t value, IntOr(json, key, path, fallback, min, kMaxCount));
    *out = static_cast<int32_t>(value);
    return absl::OkStatus();
  };
  KVB_RETURN_IF_ERROR(read("layers", 0, 1, &geometry.layers));
  KVB_RETURN_IF_ERROR(read("kv_heads", 0, 1, &geometry.kv_heads));
  KVB_RETURN_IF_ERROR(read("head_dim", 0, 1, &geometry.head_dim));
  KVB_RETURN_IF_ERROR(read("tp_degree", 1, 0, &geometry.tp_degree));
  KVB_RETURN_IF_ERROR(read("tp_rank", 0, 0, &geometry.tp_rank));
  if (geometry.tp_degree == 0) geometry.tp_degree = 1;
  for (const char* key : {"layers", "kv_heads", "head_dim", "element_type"}) {
    if (!json.contains(key)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ".", key, ": missing"));
    }
  }
  KVB_ASSIGN_OR_RETURN(geometry.dtype, ValueIn(kElementTypes, json["element_type"],
                                               absl::StrCat(path, ".element_type")));
  KVB_ASSIGN_OR_RETURN(const Json attention, ListOrEmpty(json, "attention", path));
  for (const Json& word : attention) {
    KVB_ASSIGN_OR_RETURN(const model::AttentionKind kind,
                         ValueIn(kAttentionKinds, word, absl::StrCat(path, ".attention")));
    geometry.attention.push_back(kind);
  }
  if (!attention.empty() && attention.size() != static_cast<size_t>(geometry.layers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ".attention: expected none or ", geometry.layers, " kinds, got ", attention.size()));
  }
  KVB_ASSIGN_OR_RETURN(const Json order, ListOrEmpty(json, "head_order", path));
  for (const Json& head : order) {
    KVB_ASSIGN_OR_RETURN(const int64_t value, base::GetInt(Json{{"head_order", head}}, "head_order",
                                                           path, 0, kMaxCount - 1));
    geometry.head_order.push_back(static_cast<int32_t>(value));
  }
  return geometry;
}

absl::StatusOr<model::RopeSpec> RopeFromJson(const Json& json, absl::string_view path) {
  KVB_RETURN_IF_ERROR(WantObject(json, path));
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(json, {"params", "layer_overrides", "max_position"}, path));
  model::RopeSpec rope;
  if (json.contains("params")) {
    KVB_ASSIGN_OR_RETURN(rope.params,
                         ParamsFromJson(json["params"], absl::StrCat(path, ".params")));
  }
  if (json.contains("layer_overrides")) {
    const std::string where = absl::StrCat(path, ".layer_overrides");
    KVB_RETURN_IF_ERROR(WantObject(json["layer_overrides"], where));
    for (const auto& [key, value] : json["layer_overrides"].items()) {
      int32_t layer = 0;
      if (!absl::SimpleAtoi(key, &layer) || layer < 0 || layer >= kMaxCount ||
          key != absl::StrCat(layer)) {
        return absl::InvalidArgumentError(absl::StrCat(
            where, ": expected layer indices as keys, got \"", key.substr(0, 40), "\""));
      }
      KVB_ASSIGN_OR_RETURN(model::RopeParams params,
                           ParamsFromJson(value, absl::StrCat(where, ".", key)));
      rope.layer_overrides.emplace(layer, std::move(params));
    }
  }
  KVB_ASSIGN_OR_RETURN(rope.max_position, IntOr(json, "max_position", path, 0, 0,
                                                std::numeric_limits<int64_t>::max()));
  return rope;
}

absl::StatusOr<model::ModelSpec> SpecFromJson(const Json& json, absl::string_view path) {
  KVB_RETURN_IF_ERROR(WantObject(json, path));
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(json, {"identity", "geometry", "rope"}, path));
  const auto part = [&](const char* key) { return absl::StrCat(path, ".", key); };
  for (const char* key : {"identity", "geometry", "rope"}) {
    if (!json.contains(key)) return absl::InvalidArgumentError(part(key) + ": missing");
  }
  model::ModelSpec spec;
  KVB_ASSIGN_OR_RETURN(spec.identity, IdentityFromJson(json["identity"], part("identity")));
  KVB_ASSIGN_OR_RETURN(spec.geometry, GeometryFromJson(json["geometry"], part("geometry")));
  KVB_ASSIGN_OR_RETURN(spec.rope, RopeFromJson(json["rope"], part("rope")));
  return spec;
}

}  // namespace kvbridge::artifact
