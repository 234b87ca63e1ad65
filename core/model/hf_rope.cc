#include "core/model/hf_rope.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/rope/inv_freq.h"

namespace kvbridge::model {
namespace {

using base::Json;

constexpr int64_t kMaxPosition = int64_t{1} << 31;

// Every member that the published types use, and three that do not touch keys: llama_4_scaling_beta
// scales queries, finetuned is a note, max_position_embeddings repeats the top's. Anything else may
// change the rotation and is refused by name.
constexpr absl::string_view kKnownMembers[] = {"rope_type",
                                               "type",
                                               "rope_theta",
                                               "partial_rotary_factor",
                                               "factor",
                                               "original_max_position_embeddings",
                                               "attention_factor",
                                               "beta_fast",
                                               "beta_slow",
                                               "mscale",
                                               "mscale_all_dim",
                                               "truncate",
                                               "short_factor",
                                               "long_factor",
                                               "low_freq_factor",
                                               "high_freq_factor",
                                               "llama_4_scaling_beta",
                                               "finetuned",
                                               "max_position_embeddings"};

const Json& EmptyObject() {
  static const Json* const empty = new Json(Json::object());
  return *empty;
}

// The object that holds the rotary settings of full-attention layers; empty when there is none.
absl::StatusOr<HfFields> FindSettings(const HfFields& config) {
  const Json* scaling = config.Find("rope_scaling");
  const Json* parameters = config.Find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.PathOf("rope_scaling"), ": expected the same as ",
                     config.PathOf("rope_parameters"), ", got different members"));
  }
  if (scaling == nullptr && parameters == nullptr) {
    return HfFields(EmptyObject(), config.PathOf("rope_scaling"));
  }
  const absl::string_view key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  KVB_ASSIGN_OR_RETURN(const Json* found, base::GetObject(config.object(), key, config.path()));
  const bool per_layer_type = std::any_of(found->begin(), found->end(),
                                          [](const Json& member) { return member.is_object(); });
  if (!per_layer_type) return HfFields(*found, config.PathOf(key));
  // Layers of any other type have been refused by then.
  KVB_ASSIGN_OR_RETURN(const Json* full,
                       base::GetObject(*found, "full_attention", config.PathOf(key)));
  return HfFields(*full, absl::StrCat(config.PathOf(key), ".full_attention"));
}

absl::Status RefuseUnknownMembers(const HfFields& settings) {
  for (const auto& [key, value] : settings.object().items()) {
    if (std::find(std::begin(kKnownMembers), std::end(kKnownMembers), key) ==
        std::end(kKnownMembers)) {
      return absl::UnimplementedError(
          absl::StrCat(settings.PathOf(Shown(key)), ": its effect on keys is not known"));
    }
  }
  return absl::OkStatus();
}

// "default" when not stated. `type` is the older spelling, "su" the older name of longrope.
absl::StatusOr<std::string> RopeType(const HfFields& settings) {
  KVB_ASSIGN_OR_RETURN(auto type, settings.String("rope_type"));
  KVB_ASSIGN_OR_RETURN(const auto older, settings.String("type"));
  if (type && older && *type != *older) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings.PathOf("type"), ": expected the same as rope_type = ", Shown(*type),
                     ", got ", Shown(*older)));
  }
  if (!type) type = older;
  if (!type) return std::string("default");
  return *type == "su" ? std::string("longrope") : *type;
}

absl::StatusOr<double> RopeTheta(const HfFields& config, const HfFields& settings,
                                 const HfFamily* family) {
  Stated theta;
  for (const char* key : {"rope_theta", "rotary_emb_base"}) {
    KVB_ASSIGN_OR_RETURN(const auto value, config.Number(key));
    KVB_RETURN_IF_ERROR(Merge(value, config.PathOf(key), &theta));
  }
  KVB_ASSIGN_OR_RETURN(const auto value, settings.Number("rope_theta"));
  KVB_RETURN_IF_ERROR(Merge(value, settings.PathOf("rope_theta"), &theta));
  if (theta.value && !(*theta.value > 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(theta.path, ": expected a number above 1, got ", *theta.value));
  }
  if (theta.value) return *theta.value;
  if (family != nullptr && family->rope_theta != 0) return family->rope_theta;
  return absl::InvalidArgumentError(
      absl::StrCat(config.PathOf("rope_theta"),
                   ": expected a number (this model_type has no default), got nothing"));
}

// Dropped or applied twice, a partial factor still gives valid shapes: all places must agree.
absl::StatusOr<int32_t> RotaryDim(const HfFields& config, const HfFields& settings,
                                  const HfFamily* family, int32_t head_dim) {
  Stated dim;
  KVB_ASSIGN_OR_RETURN(const auto stated, config.Int("rotary_dim", 2, head_dim));
  KVB_RETURN_IF_ERROR(Merge(stated, config.PathOf("rotary_dim"), &dim));
  const auto merge_share = [&](const HfFields& fields, absl::string_view key) -> absl::Status {
    KVB_ASSIGN_OR_RETURN(const auto share, fields.Number(key));
    if (!share) return absl::OkStatus();
    if (!(*share > 0 && *share <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          fields.PathOf(key), ": expected a share of the head in (0, 1], got ", *share));
    }
    return Merge(std::trunc(head_dim * *share),
                 absl::StrCat(fields.PathOf(key), " (rotary dimensions)"), &dim);
  };
  KVB_RETURN_IF_ERROR(merge_share(config, "partial_rotary_factor"));
  KVB_RETURN_IF_ERROR(merge_share(config, "rotary_pct"));
  KVB_RETURN_IF_ERROR(merge_share(settings, "partial_rotary_factor"));
  if (!dim.value && family != nullptr && family->partial_rotary_factor == 0) {
    return absl::InvalidArgumentError(absl::StrCat(config.PathOf("rotary_dim"),
                                                   ": expected an even number up to ", head_dim,
                                                   ", got nothing"));
  }
  if (!dim.value) dim.value = std::trunc(head_dim * (family ? family->partial_rotary_factor : 1.0));
  const auto rotary_dim = static_cast<int32_t>(*dim.value);
  if (rotary_dim == 0 || rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(dim.path.empty() ? config.PathOf("head_dim") : dim.path,
                     ": expected an even rotary dimension, got ", rotary_dim));
  }
  return rotary_dim;
}

absl::StatusOr<double> RequiredNumber(const HfFields& settings, absl::string_view key) {
  return base::GetFinite(settings.object(), key, settings.path());
}

// The context length of pre-training. Phi-3 states it at the top; when nobody does, transformers
// takes max_position_embeddings.
absl::StatusOr<double> OriginalMaxPosition(const HfFields& config, const HfFields& settings) {
  constexpr absl::string_view kKey = "original_max_position_embeddings";
  Stated original;
  for (const HfFields* fields : {&config, &settings}) {
    KVB_ASSIGN_OR_RETURN(const auto value, fields->Number(kKey));
    KVB_RETURN_IF_ERROR(Merge(value, fields->PathOf(kKey), &original));
  }
  if (original.value) return *original.value;
  KVB_ASSIGN_OR_RETURN(const auto max_position, config.Number("max_position_embeddings"));
  if (max_position) return *max_position;
  return absl::InvalidArgumentError(
      absl::StrCat(settings.PathOf(kKey), ": expected a number, got nothing"));
}

// `factor`, or the ratio of the two context lengths when the config leaves it out.
absl::StatusOr<double> ExtensionFactor(const HfFields& config, const HfFields& settings,
                                       double original) {
  KVB_ASSIGN_OR_RETURN(const auto factor, settings.Number("factor"));
  if (factor) return *factor;
  KVB_ASSIGN_OR_RETURN(const auto max_position, config.Number("max_position_embeddings"));
  if (max_position) return *max_position / original;
  return absl::InvalidArgumentError(
      absl::StrCat(settings.PathOf("factor"), ": expected a number, got nothing"));
}

absl::StatusOr<rope::RopeScaling> Llama3(const HfFields& config, const HfFields& settings) {
  rope::Llama3Scaling llama3;
  KVB_ASSIGN_OR_RETURN(llama3.factor, RequiredNumber(settings, "factor"));
  KVB_ASSIGN_OR_RETURN(llama3.low_freq_factor, RequiredNumber(settings, "low_freq_factor"));
  KVB_ASSIGN_OR_RETURN(llama3.high_freq_factor, RequiredNumber(settings, "high_freq_factor"));
  KVB_ASSIGN_OR_RETURN(llama3.original_max_position, OriginalMaxPosition(config, settings));
  return llama3;
}

absl::StatusOr<rope::RopeScaling> Yarn(const HfFields& config, const HfFields& settings) {
  rope::YarnScaling yarn;
  KVB_ASSIGN_OR_RETURN(yarn.original_max_position, OriginalMaxPosition(config, settings));
  KVB_ASSIGN_OR_RETURN(yarn.factor, ExtensionFactor(config, settings, yarn.original_max_position));
  KVB_ASSIGN_OR_RETURN(yarn.attention_factor, settings.Number("attention_factor"));
  KVB_ASSIGN_OR_RETURN(yarn.mscale, settings.Number("mscale"));
  KVB_ASSIGN_OR_RETURN(yarn.mscale_all_dim, settings.Number("mscale_all_dim"));
  KVB_ASSIGN_OR_RETURN(const auto beta_fast, settings.Number("beta_fast"));
  KVB_ASSIGN_OR_RETURN(const auto beta_slow, settings.Number("beta_slow"));
  KVB_ASSIGN_OR_RETURN(const auto truncate, settings.Bool("truncate"));
  yarn.beta_fast = beta_fast.value_or(yarn.beta_fast);
  yarn.beta_slow = beta_slow.value_or(yarn.beta_slow);
  yarn.truncate = truncate.value_or(yarn.truncate);
  return yarn;
}

absl::StatusOr<rope::RopeScaling> LongRope(const HfFields& config, const HfFields& settings,
                                           const HfConfigOptions& options) {
  if (!options.longrope_list) {
    return absl::InvalidArgumentError(absl::StrCat(
        settings.PathOf("rope_type"),
        ": longrope needs the caller to state whether keys were rotated with short_factor or "
        "long_factor (longrope_list); the config cannot say"));
  }
  const bool is_long = *options.longrope_list == LongRopeList::kLong;
  rope::LongRopeScaling longrope;
  KVB_ASSIGN_OR_RETURN(longrope.factors,
                       settings.Numbers(is_long ? "long_factor" : "short_factor"));
  KVB_ASSIGN_OR_RETURN(longrope.original_max_position, OriginalMaxPosition(config, settings));
  KVB_ASSIGN_OR_RETURN(longrope.factor,
                       ExtensionFactor(config, settings, longrope.original_max_position));
  KVB_ASSIGN_OR_RETURN(longrope.attention_factor, settings.Number("attention_factor"));
  return longrope;
}

absl::StatusOr<rope::RopeScaling> Scaling(const HfFields& config, const HfFields& settings,
                                          const HfConfigOptions& options) {
  KVB_ASSIGN_OR_RETURN(const std::string type, RopeType(settings));
  // Phi-3's first releases called their longrope "yarn": the lists tell.
  for (const char* list : {"short_factor", "long_factor"}) {
    if (type != "longrope" && settings.Find(list) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(settings.PathOf(list),
                       ": expected with rope_type longrope only, got rope_type ", Shown(type)));
    }
  }
  if (type == "default") return rope::DefaultScaling{};
  if (type == "llama3") return Llama3(config, settings);
  if (type == "yarn") return Yarn(config, settings);
  if (type == "longrope") return LongRope(config, settings, options);
  if (type == "linear") {
    KVB_ASSIGN_OR_RETURN(const double factor, RequiredNumber(settings, "factor"));
    return rope::LinearScaling{factor};
  }
  return absl::UnimplementedError(absl::StrCat(
      settings.PathOf(settings.Find("rope_type") ? "rope_type" : "type"),
      ": expected default, linear, llama3, yarn or longrope, got ", Shown(type),
      type == "dynamic" ? " (its base depends on the sequence length when each key was written)"
                        : ""));
}

// Configs extended by YaRN or linear scaling often keep the old max_position_embeddings: engines
// serve factor times the original, and so must the bound.
int64_t MaxPosition(double stated, const rope::RopeScaling& scaling) {
  double bound = stated;
  if (const auto* yarn = std::get_if<rope::YarnScaling>(&scaling)) {
    bound = std::max(bound, std::ceil(yarn->factor * yarn->original_max_position));
  } else if (const auto* linear = std::get_if<rope::LinearScaling>(&scaling)) {
    bound = std::ceil(bound * linear->factor);
  }
  return static_cast<int64_t>(std::min<double>(bound, kMaxPosition));
}

}  // namespace

absl::StatusOr<RopeSpec> RopeFromHfConfig(const HfFields& config, const HfFamily* family,
                                          int32_t head_dim, const HfConfigOptions& options) {
  if (family == nullptr && !options.pairing) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.PathOf("model_type"),
        ": expected a known model type or an explicit pairing (half or interleaved), got ",
        Shown(config.Find("model_type")->get_ref<const std::string&>())));
  }
  KVB_ASSIGN_OR_RETURN(const HfFields settings, FindSettings(config));
  KVB_RETURN_IF_ERROR(RefuseUnknownMembers(settings));
  KVB_ASSIGN_OR_RETURN(const rope::RopeScaling scaling, Scaling(config, settings, options));
  KVB_ASSIGN_OR_RETURN(const double theta, RopeTheta(config, settings, family));
  KVB_ASSIGN_OR_RETURN(const int32_t rotary_dim, RotaryDim(config, settings, family, head_dim));
  constexpr const char* kMaxPositionNames[] = {"max_position_embeddings", "n_positions"};
  Stated max_position;
  for (const char* key : kMaxPositionNames) {
    KVB_ASSIGN_OR_RETURN(const auto value, config.Int(key, 1, kMaxPosition));
    KVB_RETURN_IF_ERROR(Merge(value, config.PathOf(key), &max_position));
  }

  auto params = rope::MakeRopeParams(theta, rotary_dim,
                                     options.pairing ? *options.pairing : family->pairing, scaling);
  if (!params.ok()) {
    return absl::Status(params.status().code(),
                        absl::StrCat(settings.PathOf(params.status().message())));
  }
  RopeSpec spec;
  spec.params = *std::move(params);
  spec.max_position = MaxPosition(max_position.value.value_or(0), scaling);
  return spec;
}

}  // namespace kvbridge::model
