#include "core/model/hf_config.h"

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "core/model/hf_families.h"
#include "core/model/hf_fields.h"
#include "core/model/hf_rope.h"

namespace kvbridge::model {
namespace {

using base::Json;

// Fields that announce a cache this service does not map. One that is stated and neither 0, false
// nor empty refuses the config.
struct Marker {
  absl::string_view field;
  absl::string_view meaning;
};
constexpr Marker kMarkers[] = {
    {"kv_lora_rank", "multi-head latent attention"},
    {"q_lora_rank", "multi-head latent attention"},
    {"qk_rope_head_dim", "multi-head latent attention"},
    {"layers_block_type", "state-space or recurrent layers"},
    {"hybrid_override_pattern", "state-space or recurrent layers"},
    {"block_types", "state-space or recurrent layers"},
    {"attn_layer_period", "state-space or recurrent layers"},
    {"attn_layer_indices", "state-space or recurrent layers"},
    {"mamba_d_state", "state-space or recurrent layers"},
    {"mamba_num_heads", "state-space or recurrent layers"},
    {"ssm_cfg", "state-space or recurrent layers"},
    {"state_size", "state-space or recurrent layers"},
    {"linear_num_value_heads", "linear attention layers"},
    {"full_attention_interval", "linear attention layers"},
    {"num_kv_shared_layers", "layers that share one cache"},
    {"kv_sharing", "layers that share one cache"},
    {"cla_share_factor", "layers that share one cache"},
    {"attention_chunk_size", "chunked attention"},
    {"sliding_window_pattern", "sliding-window attention"},
    {"no_rope_layers", "layers without rotation"},
    {"no_rope_layer_interval", "layers without rotation"},
    {"alibi", "ALiBi in place of rotation"},
    {"multi_query", "a head count under another name"},
    {"num_kv_heads", "a head count under another name"},
    {"multi_query_group_num", "a head count under another name"},
};

absl::Status Unsupported(const std::string& field, absl::string_view got,
                         absl::string_view meaning) {
  return absl::UnimplementedError(absl::StrCat(field, ": expected dense full attention, got ",
                                               got.substr(0, 64), " (", meaning, ")"));
}

// Safe to cut anywhere.
std::string AsciiDump(const Json& value) {
  return value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/true);
}

bool IsActive(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  return !value.empty();
}

absl::Status RefuseMarkers(const HfFields& config) {
  for (const Marker& marker : kMarkers) {
    const Json* value = config.Find(marker.field);
    if (value != nullptr && IsActive(*value)) {
      return Unsupported(config.PathOf(marker.field), AsciiDump(*value), marker.meaning);
    }
  }
  return absl::OkStatus();
}

absl::Status RefuseLayerTypes(const HfFields& config, int32_t layers) {
  if (config.Find("layer_types") == nullptr) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(const Json* types,
                       base::GetArray(config.object(), "layer_types", config.path()));
  for (size_t i = 0; i < types->size(); ++i) {
    if ((*types)[i] != "full_attention") {
      return Unsupported(absl::StrCat(config.PathOf("layer_types"), "[", i, "]"),
                         AsciiDump((*types)[i]), "one cache layout for all layers is required");
    }
  }
  if (types->size() != static_cast<size_t>(layers)) {
    return absl::InvalidArgumentError(absl::StrCat(config.PathOf("layer_types"), ": expected ",
                                                   layers, " entries (num_hidden_layers), got ",
                                                   types->size()));
  }
  return absl::OkStatus();
}

// A window as long as the context hides nothing. Anything shorter drops old keys.
absl::Status RefuseSlidingWindow(const HfFields& config, const HfFamily* family) {
  KVB_ASSIGN_OR_RETURN(const auto use, config.Bool("use_sliding_window"));
  const int32_t family_default = family != nullptr ? family->sliding_window : 0;
  if (family_default == kOnlyIfUsed && use != true) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(auto window, config.Int("sliding_window", 0, INT64_MAX));
  // Stated as null it is off; not stated at all, the model type's default holds.
  const bool absent = !config.object().contains("sliding_window");
  if (absent && family_default > 0) window = family_default;
  KVB_ASSIGN_OR_RETURN(const auto context, config.Int("max_position_embeddings", 0, INT64_MAX));
  const bool hides_nothing = window && context && *window >= *context;
  if (use == true && !hides_nothing) {
    return Unsupported(config.PathOf("use_sliding_window"), "true", "sliding-window attention");
  }
  if (window.value_or(0) == 0 || hides_nothing) return absl::OkStatus();
  return Unsupported(config.PathOf("sliding_window"),
                     absl::StrCat(*window, absent ? ", the default of this model_type" : ""),
                     "sliding-window attention");
}

// A count under its usual name, or GPT-J's.
absl::StatusOr<int32_t> Count(const HfFields& config, absl::string_view key,
                              absl::string_view older, int64_t max) {
  const absl::string_view name = config.Find(key) || !config.Find(older) ? key : older;
  KVB_ASSIGN_OR_RETURN(const int64_t count,
                       base::GetInt(config.object(), name, config.path(), 1, max));
  return static_cast<int32_t>(count);
}

absl::StatusOr<int32_t> HeadDim(const HfFields& config, const HfFamily* family, int32_t heads) {
  constexpr int32_t kMaxHeadDim = 4096;
  KVB_ASSIGN_OR_RETURN(const auto stated, config.Int("head_dim", 1, kMaxHeadDim));
  if (stated) return static_cast<int32_t>(*stated);
  const bool absent = !config.object().contains("head_dim");
  if (absent && family != nullptr && family->head_dim != 0) return family->head_dim;
  KVB_ASSIGN_OR_RETURN(const int32_t hidden, Count(config, "hidden_size", "n_embd", 1 << 24));
  if (hidden % heads != 0 || hidden / heads > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.PathOf("hidden_size"), ": expected a multiple of num_attention_heads = ", heads,
        " with heads of at most ", kMaxHeadDim, ", got ", hidden));
  }
  return hidden / heads;
}

absl::StatusOr<KvGeometry> Geometry(const HfFields& config, const HfFamily* family) {
  constexpr int64_t kMaxCount = 1 << 16;
  KvGeometry geometry;
  KVB_ASSIGN_OR_RETURN(geometry.layers, Count(config, "num_hidden_layers", "n_layer", kMaxCount));
  KVB_ASSIGN_OR_RETURN(const int32_t heads,
                       Count(config, "num_attention_heads", "n_head", kMaxCount));
  KVB_ASSIGN_OR_RETURN(const auto kv_heads, config.Int("num_key_value_heads", 1, kMaxCount));
  geometry.kv_heads = static_cast<int32_t>(kv_heads.value_or(heads));
  if (heads % geometry.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.PathOf("num_key_value_heads"),
        ": expected a divisor of num_attention_heads = ", heads, ", got ", geometry.kv_heads));
  }
  KVB_ASSIGN_OR_RETURN(geometry.head_dim, HeadDim(config, family, heads));
  const char* dtype_key = config.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  KVB_ASSIGN_OR_RETURN(const auto dtype, config.String(dtype_key));
  if (dtype) {
    auto parsed = tensor::ParseDType(*dtype);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.PathOf(dtype_key), ": ", parsed.status().message()));
    }
    geometry.dtype = *parsed;
  }
  return geometry;
}

absl::StatusOr<ModelSpec> ReadSpec(const HfFields& config, const HfConfigOptions& options) {
  ModelSpec spec;
  KVB_ASSIGN_OR_RETURN(spec.identity.family,
                       base::GetString(config.object(), "model_type", config.path()));
  const HfFamily* family = FindHfFamily(spec.identity.family);
  KVB_RETURN_IF_ERROR(RefuseMarkers(config));
  KVB_ASSIGN_OR_RETURN(spec.geometry, Geometry(config, family));
  KVB_RETURN_IF_ERROR(RefuseLayerTypes(config, spec.geometry.layers));
  KVB_RETURN_IF_ERROR(RefuseSlidingWindow(config, family));
  KVB_ASSIGN_OR_RETURN(spec.rope,
                       RopeFromHfConfig(config, family, spec.geometry.head_dim, options));
  return spec;
}

}  // namespace

absl::StatusOr<ModelSpec> SpecFromHfConfig(absl::string_view json_text,
                                           const HfConfigOptions& options, absl::string_view path) {
  constexpr base::JsonLimits kLimits{.max_depth = 32, .max_bytes = size_t{4} << 20};
  KVB_ASSIGN_OR_RETURN(const Json root, base::ParseStrictJson(json_text, path, kLimits));
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected an object, got ", root.type_name()));
  }
  const HfFields config(root, std::string(path));
  if (config.Find("text_config") == nullptr) return ReadSpec(config, options);
  KVB_ASSIGN_OR_RETURN(const Json* text, base::GetObject(root, "text_config", path));
  return ReadSpec(HfFields(*text, config.PathOf("text_config")), options);
}

}  // namespace kvbridge::model
