// YAML as JSON, for small files that people write: JSON itself is YAML, too.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/strict_json.h"

namespace kvbridge::evidence {

// Plain scalars become numbers, booleans or null where they look like one, quoted ones strings.
// INVALID_ARGUMENT for what YAML refuses, duplicate keys, keys that aren't scalars, aliases, more
// than 64 KiB and nesting deeper than 8; `what` names the input.
absl::StatusOr<base::Json> JsonFromYaml(absl::string_view text, absl::string_view what);

}  // namespace kvbridge::evidence
