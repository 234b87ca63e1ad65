// What transformers' code says about a model type and its config.json may not.
#pragma once

#include "absl/strings/string_view.h"

#include "core/model/model_spec.h"

namespace kvbridge::model {

inline constexpr int32_t kOnlyIfUsed = -1;

struct HfFamily {
  absl::string_view model_type;
  Pairing pairing;
  // Defaults of the configuration class, used when the field is absent; 0 = it must be stated.
  double rope_theta;
  double partial_rotary_factor;
  int32_t head_dim;  // 0 = hidden_size / num_attention_heads
  // 0 = no window unless stated; kOnlyIfUsed = a stated window counts only with use_sliding_window.
  int32_t sliding_window;
};

// nullptr for a type that is not in the table.
const HfFamily* FindHfFamily(absl::string_view model_type);

}  // namespace kvbridge::model
