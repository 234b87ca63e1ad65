// Optional members of a config object: absent and null both mean "not stated", a wrong type is
// refused.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/strict_json.h"

namespace kvbridge::model {

// At most 64 bytes of a string from outside, printable ASCII: safe to cut and to put in a message.
std::string Shown(absl::string_view text);

// Borrows the object. Errors are INVALID_ARGUMENT naming path and field.
class HfFields {
 public:
  HfFields(const base::Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // nullptr when not stated.
  const base::Json* Find(absl::string_view key) const;
  absl::StatusOr<std::optional<int64_t>> Int(absl::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<std::optional<double>> Number(absl::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(absl::string_view key) const;
  absl::StatusOr<std::vector<double>> Numbers(absl::string_view key) const;  // required

  std::string PathOf(absl::string_view key) const;
  const base::Json& object() const { return object_; }
  const std::string& path() const { return path_; }

 private:
  const base::Json& object_;
  std::string path_;
};

// One fact that a config may state under several names or not at all.
struct Stated {
  std::optional<double> value;
  std::string path;  // of the first place that states it
};

// Takes over `value` from `path` unless an earlier place said otherwise: then INVALID_ARGUMENT
// naming both.
absl::Status Merge(std::optional<double> value, std::string path, Stated* into);

}  // namespace kvbridge::model
