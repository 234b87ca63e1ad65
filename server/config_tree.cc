#include "server/config_tree.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include <yaml-cpp/yaml.h>

#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"

namespace kvbridge::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxNodes = 20000;
constexpr int kMaxDepth = 16;

absl::Status Wrong(absl::string_view path, absl::string_view expected, absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": expected ", expected, ", got \"", got.substr(0, 80), "\""));
}

// Levenshtein distance, for names of a few letters.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

absl::Status UnknownField(const Descriptor& type, absl::string_view key, const std::string& path) {
  size_t best = std::max<size_t>(2, key.size() / 3);
  std::string hint;
  if (key.size() <= 64) {
    for (int i = 0; i < type.field_count(); ++i) {
      const size_t distance = Distance(key, type.field(i)->name());
      if (distance > best) continue;
      best = distance;
      hint = absl::StrCat(", did you mean ", type.field(i)->name(), "?");
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": unknown field", hint));
}

bool IsDuration(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
         field->message_type() == google::protobuf::Duration::descriptor();
}

std::string Join(const std::string& path, absl::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", key);
}

// "ROUTE_STAGE_LIVE" -> "live": the enum's zero value tells the prefix.
std::string ShortName(const EnumValueDescriptor& value) {
  const absl::string_view prefix = absl::StripSuffix(value.type()->value(0)->name(), "UNSPECIFIED");
  return absl::AsciiStrToLower(absl::StripPrefix(value.name(), prefix));
}

const EnumValueDescriptor* FindEnum(const EnumDescriptor& type, absl::string_view text) {
  for (int i = 1; i < type.value_count(); ++i) {
    const EnumValueDescriptor& value = *type.value(i);
    if (absl::EqualsIgnoreCase(text, value.name()) ||
        absl::EqualsIgnoreCase(text, ShortName(value))) {
      return &value;
    }
  }
  return nullptr;
}

std::string EnumChoices(const EnumDescriptor& type) {
  std::string choices = "one of";
  for (int i = 1; i < type.value_count(); ++i) {
    absl::StrAppend(&choices, i == 1 ? " " : ", ", ShortName(*type.value(i)));
  }
  return choices;
}

// "256MiB", "1 GiB", "4096".
bool ParseSize(absl::string_view text, int64_t* out) {
  constexpr std::pair<const char*, uint64_t> kUnits[] = {
      {"KiB", base::kKiB}, {"MiB", base::kMiB}, {"GiB", base::kGiB}};
  for (const auto& [unit, bytes] : kUnits) {
    if (!absl::ConsumeSuffix(&text, unit)) continue;
    uint64_t count = 0;
    uint64_t total = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &count) ||
        !base::CheckedMul(count, bytes, &total) ||
        total > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return false;
    }
    *out = static_cast<int64_t>(total);
    return true;
  }
  return absl::SimpleAtoi(text, out);
}

// Hands a parsed value to the setter of its C++ type: Set for a field, Add for a list entry.
class Setter {
 public:
  Setter(Message* message, const FieldDescriptor* field)
      : message_(message), field_(field), reflection_(message->GetReflection()) {}

  absl::Status Put(absl::string_view text, const std::string& path) const {
    switch (field_->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return PutString(text);
      case FieldDescriptor::CPPTYPE_BOOL:
        return PutBool(text, path);
      case FieldDescriptor::CPPTYPE_INT32:
        return PutInt32(text, path);
      case FieldDescriptor::CPPTYPE_INT64:
        return PutInt64(text, path);
      case FieldDescriptor::CPPTYPE_UINT32:
        return PutUint32(text, path);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return PutDouble(text, path);
      case FieldDescriptor::CPPTYPE_ENUM:
        return PutEnum(text, path);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return PutDuration(text, path);
      default:
        return absl::InternalError(
            absl::StrCat(path, ": a field type that the configuration cannot hold"));
    }
  }

 private:
  absl::Status PutString(absl::string_view text) const {
    if (field_->is_repeated()) {
      reflection_->AddString(message_, field_, std::string(text));
    } else {
      reflection_->SetString(message_, field_, std::string(text));
    }
    return absl::OkStatus();
  }

  absl::Status PutBool(absl::string_view text, const std::string& path) const {
    if (text != "true" && text != "false") return Wrong(path, "true or false", text);
    reflection_->SetBool(message_, field_, text == "true");
    return absl::OkStatus();
  }

  absl::Status PutInt32(absl::string_view text, const std::string& path) const {
    int32_t value = 0;
    if (!absl::SimpleAtoi(text, &value)) return Wrong(path, "a 32-bit integer", text);
    reflection_->SetInt32(message_, field_, value);
    return absl::OkStatus();
  }

  absl::Status PutUint32(absl::string_view text, const std::string& path) const {
    uint32_t value = 0;
    if (!absl::SimpleAtoi(text, &value)) return Wrong(path, "an unsigned 32-bit integer", text);
    if (field_->is_repeated()) {
      reflection_->AddUInt32(message_, field_, value);
    } else {
      reflection_->SetUInt32(message_, field_, value);
    }
    return absl::OkStatus();
  }

  absl::Status PutInt64(absl::string_view text, const std::string& path) const {
    int64_t value = 0;
    if (absl::EndsWith(field_->name(), "_bytes")) {
      if (!ParseSize(text, &value)) return Wrong(path, "bytes, such as 1048576 or 256MiB", text);
    } else if (!absl::SimpleAtoi(text, &value)) {
      return Wrong(path, "a 64-bit integer", text);
    }
    reflection_->SetInt64(message_, field_, value);
    return absl::OkStatus();
  }

  absl::Status PutDouble(absl::string_view text, const std::string& path) const {
    double value = 0;
    if (!absl::SimpleAtod(text, &value)) return Wrong(path, "a number", text);
    if (field_->is_repeated()) {
      reflection_->AddDouble(message_, field_, value);
    } else {
      reflection_->SetDouble(message_, field_, value);
    }
    return absl::OkStatus();
  }

  absl::Status PutEnum(absl::string_view text, const std::string& path) const {
    const EnumValueDescriptor* value = FindEnum(*field_->enum_type(), text);
    if (value == nullptr) return Wrong(path, EnumChoices(*field_->enum_type()), text);
    reflection_->SetEnum(message_, field_, value);
    return absl::OkStatus();
  }

  absl::Status PutDuration(absl::string_view text, const std::string& path) const {
    absl::Duration duration;
    if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
        duration > absl::Hours(24)) {
      return Wrong(path, "a duration from 0s to 24h, such as 250ms", text);
    }
    auto* out =
        static_cast<google::protobuf::Duration*>(reflection_->MutableMessage(message_, field_));
    out->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
    out->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
    return absl::OkStatus();
  }

  Message* const message_;
  const FieldDescriptor* const field_;
  const google::protobuf::Reflection* const reflection_;
};

// Walks a YAML tree beside the message's descriptor.
class YamlWalker {
 public:
  explicit YamlWalker(const OnSet& on_set) : on_set_(on_set) {}

  absl::Status FillMessage(const YAML::Node& node, Message* message, const std::string& path,
                           int depth) {
    KVB_RETURN_IF_ERROR(CountNode(path, depth));
    if (node.IsNull()) return absl::OkStatus();  // a section with everything commented out
    if (!node.IsMap()) return Wrong(path.empty() ? "the document" : path, "a mapping", Kind(node));
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return Wrong(path, "keys that are names", Kind(entry.first));
      const std::string& key = entry.first.Scalar();
      const std::string child = Join(path, key.substr(0, 80));
      if (!seen.insert(key).second) {
        return absl::InvalidArgumentError(absl::StrCat(child, ": the key is there twice"));
      }
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key);
      if (field == nullptr) return UnknownField(*message->GetDescriptor(), key, child);
      KVB_RETURN_IF_ERROR(FillField(entry.second, message, field, child, depth + 1));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status FillField(const YAML::Node& node, Message* message, const FieldDescriptor* field,
                         const std::string& path, int depth) {
    if (field->is_repeated()) return FillList(node, message, field, path, depth);
    if (!IsScalar(field)) {
      return FillMessage(node, message->GetReflection()->MutableMessage(message, field), path,
                         depth);
    }
    return FillScalar(node, message, field, path, depth);
  }

  absl::Status FillList(const YAML::Node& node, Message* message, const FieldDescriptor* field,
                        const std::string& path, int depth) {
    KVB_RETURN_IF_ERROR(CountNode(path, depth));
    if (node.IsNull()) return absl::OkStatus();
    if (!node.IsSequence()) return Wrong(path, "a list", Kind(node));
    for (size_t i = 0; i < node.size(); ++i) {
      const std::string child = absl::StrCat(path, "[", i, "]");
      KVB_RETURN_IF_ERROR(IsScalar(field)
                              ? FillScalar(node[i], message, field, child, depth + 1)
                              : FillMessage(node[i],
                                            message->GetReflection()->AddMessage(message, field),
                                            child, depth + 1));
    }
    if (IsScalar(field)) on_set_(path);
    return absl::OkStatus();
  }

  absl::Status FillScalar(const YAML::Node& node, Message* message, const FieldDescriptor* field,
                          const std::string& path, int depth) {
    KVB_RETURN_IF_ERROR(CountNode(path, depth));
    if (!node.IsScalar()) return Wrong(path, "a value", Kind(node));
    KVB_RETURN_IF_ERROR(Setter(message, field).Put(node.Scalar(), path));
    if (!field->is_repeated()) on_set_(path);
    return absl::OkStatus();
  }

  // Aliases make a small file a huge tree, or an endless one.
  absl::Status CountNode(const std::string& path, int depth) {
    if (depth > kMaxDepth || ++nodes_ > kMaxNodes) {
      return absl::InvalidArgumentError(absl::StrCat(path.substr(0, 200), ": expected at most ",
                                                     kMaxNodes, " nodes in ", kMaxDepth,
                                                     " levels, got more"));
    }
    return absl::OkStatus();
  }

  static const char* Kind(const YAML::Node& node) {
    if (node.IsMap()) return "a mapping";
    if (node.IsSequence()) return "a list";
    return node.IsScalar() ? "a value" : "nothing";
  }

  const OnSet& on_set_;
  int nodes_ = 0;
};

}  // namespace

absl::Status FillFromYaml(absl::string_view text, absl::string_view name, Message* message,
                          const OnSet& on_set) {
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected at most ",
                                                   base::HumanBytes(kMaxBytes), ", got ",
                                                   base::HumanBytes(text.size())));
  }
  absl::Status status;
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected one YAML document, got ", documents.size()));
    }
    if (documents.empty()) return absl::OkStatus();
    status = YamlWalker(on_set).FillMessage(documents[0], message, "", 0);
  } catch (const YAML::Exception& error) {
    status = absl::InvalidArgumentError(error.what());
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
}

absl::Status SetField(Message* message, const FieldDescriptor* field, absl::string_view text,
                      const std::string& path) {
  const Setter setter(message, field);
  if (!field->is_repeated()) return setter.Put(text, path);
  message->GetReflection()->ClearField(message, field);
  for (absl::string_view entry : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    KVB_RETURN_IF_ERROR(setter.Put(absl::StripAsciiWhitespace(entry), path));
  }
  return absl::OkStatus();
}

bool IsScalar(const FieldDescriptor* field) {
  return field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || IsDuration(field);
}

std::string ScalarText(const Message& message, const FieldDescriptor* field, int index) {
  const auto* reflection = message.GetReflection();
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return list ? reflection->GetRepeatedString(message, field, index)
                  : reflection->GetString(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(list ? reflection->GetRepeatedUInt32(message, field, index)
                               : reflection->GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(list ? reflection->GetRepeatedDouble(message, field, index)
                               : reflection->GetDouble(message, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return ShortName(*reflection->GetEnum(message, field));
    default: {
      const auto& duration =
          static_cast<const google::protobuf::Duration&>(reflection->GetMessage(message, field));
      return absl::FormatDuration(absl::Seconds(duration.seconds()) +
                                  absl::Nanoseconds(duration.nanos()));
    }
  }
}

}  // namespace kvbridge::server
