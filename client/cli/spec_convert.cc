#include "client/cli/spec_convert.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "core/artifact/spec_json.h"
#include "core/base/status_macros.h"
#include "google/protobuf/util/json_util.h"

namespace kvbridge::cli {

absl::StatusOr<v1::ModelSpec> ToProto(const model::ModelSpec& spec) {
  v1::ModelSpec proto;
  const std::string json = artifact::SpecToJson(spec).dump();
  if (const auto status = google::protobuf::util::JsonStringToMessage(json, &proto); !status.ok()) {
    return absl::InternalError(absl::StrCat("model spec: ", status.ToString()));
  }
  return proto;
}

absl::StatusOr<model::ModelSpec> FromProto(const v1::ModelSpec& spec, absl::string_view path) {
  KVB_ASSIGN_OR_RETURN(const base::Json json, ToJson(spec));
  return artifact::SpecFromJson(json, path);
}

absl::StatusOr<base::Json> ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
      !status.ok()) {
    return absl::InternalError(absl::StrCat(message.GetTypeName(), ": ", status.ToString()));
  }
  return base::ParseStrictJson(json, message.GetTypeName());
}

absl::StatusOr<base::Json> ToDocument(const char* schema,
                                      const google::protobuf::Message& message) {
  KVB_ASSIGN_OR_RETURN(base::Json document, ToJson(message));
  document["schema"] = schema;
  return document;
}

std::string EnumWord(const std::string& name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

}  // namespace kvbridge::cli
