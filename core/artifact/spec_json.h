// Model specs as JSON: the JSON form of kvbridge.v1's ModelIdentity, KvGeometry, RopeSpec and
// ModelSpec with the proto's own (snake_case) field names, shared by manifests and cache files.
//
// Writing states every field, so that a digest over it covers defaults too. Reading takes any valid
// proto JSON of those messages: fields that were left out have the proto's default, 64-bit integers
// may be strings. Unknown fields, wrong types and out-of-range numbers are INVALID_ARGUMENT naming
// the full path, what was expected and what came.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/strict_json.h"
#include "core/model/model_spec.h"

namespace kvbridge::artifact {

base::Json IdentityToJson(const model::ModelIdentity& identity);
base::Json GeometryToJson(const model::KvGeometry& geometry);
base::Json RopeToJson(const model::RopeSpec& rope);
base::Json SpecToJson(const model::ModelSpec& spec);

absl::StatusOr<model::ModelIdentity> IdentityFromJson(const base::Json& json,
                                                      absl::string_view path);
absl::StatusOr<model::KvGeometry> GeometryFromJson(const base::Json& json, absl::string_view path);
absl::StatusOr<model::RopeSpec> RopeFromJson(const base::Json& json, absl::string_view path);
absl::StatusOr<model::ModelSpec> SpecFromJson(const base::Json& json, absl::string_view path);

}  // namespace kvbridge::artifact
