// The rule that ties a prototype artifact's layer lists to what its fit recorded
// (prototype_format.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "core/base/strict_json.h"

namespace kvbridge::artifact {

// `lists` are the manifest's selected_layers, one per target layer, with indices below
// `source_layers`. INVALID_ARGUMENT names the first list that the rule refuses.
absl::Status CheckPrototypeSelection(const base::Json& manifest,
                                     const std::vector<std::vector<int32_t>>& lists, int64_t top_k,
                                     int64_t source_layers);

}  // namespace kvbridge::artifact
