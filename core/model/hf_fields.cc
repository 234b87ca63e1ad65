#include "core/model/hf_fields.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::model {
namespace {

// A required getter of core/base applied only where the member is stated.
template <typename T, typename Get>
absl::StatusOr<std::optional<T>> Optional(const base::Json* found, Get get) {
  if (found == nullptr) return std::optional<T>();
  KVB_ASSIGN_OR_RETURN(T value, get());
  return std::optional<T>(std::move(value));
}

}  // namespace

std::string Shown(absl::string_view text) { return absl::CEscape(text.substr(0, 64)); }

const base::Json* HfFields::Find(absl::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<std::optional<int64_t>> HfFields::Int(absl::string_view key, int64_t min,
                                                     int64_t max) const {
  return Optional<int64_t>(Find(key), [&] { return base::GetInt(object_, key, path_, min, max); });
}

absl::StatusOr<std::optional<double>> HfFields::Number(absl::string_view key) const {
  return Optional<double>(Find(key), [&] { return base::GetFinite(object_, key, path_); });
}

absl::StatusOr<std::optional<bool>> HfFields::Bool(absl::string_view key) const {
  return Optional<bool>(Find(key), [&] { return base::GetBool(object_, key, path_); });
}

absl::StatusOr<std::optional<std::string>> HfFields::String(absl::string_view key) const {
  return Optional<std::string>(Find(key), [&] { return base::GetString(object_, key, path_); });
}

absl::StatusOr<std::vector<double>> HfFields::Numbers(absl::string_view key) const {
  KVB_ASSIGN_OR_RETURN(const base::Json* array, base::GetArray(object_, key, path_));
  std::vector<double> out;
  for (const base::Json& entry : *array) {
    if (!entry.is_number()) {
      return absl::InvalidArgumentError(absl::StrCat(
          PathOf(key), "[", out.size(), "]: expected a number, got ", entry.type_name()));
    }
    out.push_back(entry.get<double>());
  }
  return out;
}

std::string HfFields::PathOf(absl::string_view key) const { return absl::StrCat(path_, ".", key); }

absl::Status Merge(std::optional<double> value, std::string path, Stated* into) {
  if (!value) return absl::OkStatus();
  if (into->value && *into->value != *value) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected the same as ", into->path,
                                                   " = ", *into->value, ", got ", *value));
  }
  if (!into->value) *into = {value, std::move(path)};
  return absl::OkStatus();
}

}  // namespace kvbridge::model
