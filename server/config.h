// The configuration of kvbridged: flag over environment over file over default, the origin of each
// value remembered, and nothing served before all of it has been checked.
//
// Thread contract: pure functions and values.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "kvbridge/v1/config.pb.h"

namespace kvbridge::server {

enum class Origin { kDefault, kFile, kEnv, kFlag };
absl::string_view Name(Origin origin);  // "default", "file", "env", "flag"

struct ConfigSources {
  std::string file_name;  // for messages
  std::string file_text;  // YAML or JSON; may be empty
  // Whole environment; only variables that EnvName() of a setting gives are read.
  std::vector<std::pair<std::string, std::string>> env;
  std::vector<std::pair<std::string, std::string>> flags;  // setting, text
};

struct LoadedConfig {
  v1::Config config;                      // every default filled in
  std::map<std::string, Origin> origins;  // by path, e.g. "routes[0].policy.max_abs"
};

// Settings that flags and the environment may set: all outside `routes`, e.g. "limits.max_tokens".
std::vector<std::string> Settings();
std::string EnvName(absl::string_view setting);   // "KVBRIDGE_LIMITS_MAX_TOKENS"
std::string FlagName(absl::string_view setting);  // "--limits-max-tokens"

// Reads, fills defaults in, validates. INVALID_ARGUMENT names source, path, expected and got.
absl::StatusOr<LoadedConfig> LoadConfig(const ConfigSources& sources);

// INVALID_ARGUMENT with one line per problem: path, expected, got.
absl::Status Validate(const v1::Config& config);

// What LoadConfig reads back to the same configuration, each value followed by its origin.
std::string PrintYaml(const LoadedConfig& loaded);
// {"config": {...}, "origins": {"engine.threads": "default", ...}}
std::string PrintJson(const LoadedConfig& loaded);

}  // namespace kvbridge::server
