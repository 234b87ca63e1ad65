// Model specs between core and wire, by way of the JSON form that both read and write.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/strict_json.h"
#include "core/model/model_spec.h"
#include "kvbridge/v1/types.pb.h"

namespace kvbridge::cli {

absl::StatusOr<v1::ModelSpec> ToProto(const model::ModelSpec& spec);
absl::StatusOr<model::ModelSpec> FromProto(const v1::ModelSpec& spec, absl::string_view path);

// A response as its documented JSON form: proto field names, enums by name, defaults written out.
absl::StatusOr<base::Json> ToJson(const google::protobuf::Message& message);
// A document of that name with what the response says: enums by their words, as EnumWord has them
// ("" where unspecified), and integers as numbers.
absl::StatusOr<base::Json> ToDocument(const char* schema, const google::protobuf::Message& message);

// ROUTE_STAGE_LIVE without ROUTE_STAGE_, as people read it: live.
std::string EnumWord(const std::string& name, absl::string_view prefix);

}  // namespace kvbridge::cli
