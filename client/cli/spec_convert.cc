#include "client/cli/spec_convert.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "core/artifact/spec_json.h"
#include "core/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"

namespace kvbridge::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

void InWords(const Descriptor& type, base::Json* json);

// Of one value: a list's entries one by one.
void InWords(const FieldDescriptor& field, base::Json* value) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_ENUM: {
      const std::string& unspecified = field.enum_type()->value(0)->name();
      const std::string prefix(absl::StripSuffix(unspecified, "UNSPECIFIED"));
      const std::string word = EnumWord(value->get<std::string>(), prefix);
      *value = word == "unspecified" ? "" : word;
      return;
    }
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_UINT64:
      if (int64_t number = 0; absl::SimpleAtoi(value->get<std::string>(), &number)) *value = number;
      return;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return InWords(*field.message_type(), value);
    default:
      return;
  }
}

void InWords(const Descriptor& type, base::Json* json) {
  if (!json->is_object()) return;  // a time or a duration, which is one string
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto found = json->find(field.name());
    if (found == json->end() || field.is_map()) continue;
    if (!field.is_repeated()) {
      InWords(field, &*found);
    } else {
      for (base::Json& entry : *found) InWords(field, &entry);
    }
  }
}

}  // namespace

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
  InWords(*message.GetDescriptor(), &document);
  document["schema"] = schema;
  return document;
}

std::string EnumWord(const std::string& name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

}  // namespace kvbridge::cli
