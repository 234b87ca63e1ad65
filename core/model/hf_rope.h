// The rotary part of a Hugging Face config. Called by SpecFromHfConfig once the geometry is known.
#pragma once

#include "absl/status/statusor.h"

#include "core/model/hf_config.h"
#include "core/model/hf_families.h"
#include "core/model/hf_fields.h"
#include "core/model/model_spec.h"

namespace kvbridge::model {

// `family` may be nullptr (a type outside the table). Errors as SpecFromHfConfig's.
absl::StatusOr<RopeSpec> RopeFromHfConfig(const HfFields& config, const HfFamily* family,
                                          int32_t head_dim, const HfConfigOptions& options);

}  // namespace kvbridge::model
