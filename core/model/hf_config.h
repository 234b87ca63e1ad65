// Hugging Face `config.json` text -> the explicit numbers of a ModelSpec.
//
// The reader knows both spellings of rotary settings: `rope_theta` and `rope_scaling` at the top,
// and transformers 5's `rope_parameters`, flat or one per layer type. A model wrapped for images is
// read from its `text_config`. Two spellings that disagree are refused rather than ranked.
//
// What a config leaves out is taken from the defaults of the model type's own configuration class
// (transformers 5.24, models/<type>/configuration_<type>.py), never from a general rule, and is
// refused where that class has none or has changed it between releases.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/model/model_spec.h"

namespace kvbridge::model {

enum class LongRopeList : uint8_t { kShort, kLong };

struct HfConfigOptions {
  // The pairing is a property of the modelling code and not in the config. Known model types have a
  // table; this overrides it, and is required for types outside it.
  std::optional<Pairing> pairing;
  // longrope only, and required there: which list the cache's keys were rotated with.
  std::optional<LongRopeList> longrope_list;
};

// Fills identity.family (= model_type), geometry and rope; digests, ids and revisions stay empty:
// the config does not hold them. geometry.dtype is the config's dtype, bf16 when it states none.
// `path` begins field names in messages.
//   INVALID_ARGUMENT  not strict JSON, a field that is missing, of the wrong type or out of range,
//   two
//                     fields that disagree, a pairing or longrope list that the caller has to
//                     state.
//   UNIMPLEMENTED     a cache that is not dense full attention (sliding window, MLA, SSM, shared
//   KV),
//                     or a rotation that depends on sequence length (dynamic NTK); names the field.
absl::StatusOr<ModelSpec> SpecFromHfConfig(absl::string_view json_text,
                                           const HfConfigOptions& options = {},
                                           absl::string_view path = "config.json");

}  // namespace kvbridge::model
