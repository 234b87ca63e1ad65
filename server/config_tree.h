// Fills a configuration message from YAML (and so from JSON, its subset) or from single texts, and
// says by path what is wrong: "routes[1].policy.max_abz: unknown field, did you mean max_abs?".
//
// Friendly forms: durations "250ms", "5s", "1h30m"; sizes of fields named *_bytes "256MiB"; enum
// values by their short name in any case ("live").
//
// Thread contract: pure functions; nothing throws.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "google/protobuf/message.h"

namespace kvbridge::server {

// Called with the path of each value that was set.
using OnSet = std::function<void(const std::string& path)>;

// INVALID_ARGUMENT names `name` and the path. Refused: unknown and repeated keys, values of another
// kind, more than one document, more than 1 MiB, and trees (aliases expanded) of more than 20,000
// nodes or 16 levels.
absl::Status FillFromYaml(absl::string_view text, absl::string_view name,
                          google::protobuf::Message* message, const OnSet& on_set);

// Sets one field from text; lists are separated by commas and replace what was there.
absl::Status SetField(google::protobuf::Message* message,
                      const google::protobuf::FieldDescriptor* field, absl::string_view text,
                      const std::string& path);

// Whether the field is written as one text: a scalar, a list of scalars or a duration.
bool IsScalar(const google::protobuf::FieldDescriptor* field);

// The text of entry `index` of a scalar field (0 unless it is a list) in its friendly form.
std::string ScalarText(const google::protobuf::Message& message,
                       const google::protobuf::FieldDescriptor* field, int index);

}  // namespace kvbridge::server
