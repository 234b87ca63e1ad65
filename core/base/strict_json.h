// JSON from files that may be hostile: manifests, safetensors headers, configs.
//
// Parsing refuses, each with a message that says where: invalid UTF-8, a byte order mark, nesting
// deeper than `max_depth`, a duplicate key in any object, NaN/Infinity literals and numbers that
// overflow a double, bytes after the value. Nothing throws.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "nlohmann/json.hpp"

namespace kvbridge::base {

using Json = nlohmann::json;

struct JsonLimits {
  int max_depth = 32;
  size_t max_bytes = size_t{64} << 20;
};

// `what` names the input in error messages, e.g. "manifest.json". Errors are INVALID_ARGUMENT.
absl::StatusOr<Json> ParseStrictJson(absl::string_view text, absl::string_view what,
                                     JsonLimits limits = {});

// Keys sorted, no spaces, non-ASCII escaped as \uXXXX, floats in shortest round-trip form: the
// bytes that digests are taken over (the same as Python's json.dumps(sort_keys=True,
// separators=(",", ":")) for null, bools, integers and strings).
std::string CanonicalJson(const Json& value);

// Typed member access; the error names the full `path` ("manifest.source.geometry.layers"), what
// was expected and what came. Integers must be JSON integers (1.0 and true are refused).
absl::StatusOr<int64_t> GetInt(const Json& object, absl::string_view key, absl::string_view path,
                               int64_t min, int64_t max);
absl::StatusOr<double> GetFinite(const Json& object, absl::string_view key, absl::string_view path);
// A number, or null for none. NumberOrNull is what it reads back.
absl::StatusOr<std::optional<double>> GetFiniteOrNull(const Json& object, absl::string_view key,
                                                      absl::string_view path);
Json NumberOrNull(const std::optional<double>& value);
absl::StatusOr<bool> GetBool(const Json& object, absl::string_view key, absl::string_view path);
absl::StatusOr<std::string> GetString(const Json& object, absl::string_view key,
                                      absl::string_view path);
absl::StatusOr<const Json*> GetObject(const Json& object, absl::string_view key,
                                      absl::string_view path);
absl::StatusOr<const Json*> GetArray(const Json& object, absl::string_view key,
                                     absl::string_view path);

// Refuses members outside `known`: a misspelt key must not be silently ignored.
absl::Status RefuseUnknownKeys(const Json& object, std::initializer_list<absl::string_view> known,
                               absl::string_view path);

}  // namespace kvbridge::base
