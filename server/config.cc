#include "server/config.h"

#include <cmath>
#include <iterator>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "core/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"
#include "server/address.h"
#include "server/config_tree.h"

namespace kvbridge::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int kMaxRoutes = 64;

// config.proto's defaults, in the form that a person would write.
constexpr std::pair<const char*, const char*> kDefaults[] = {
    {"listen.grpc", "127.0.0.1:50061"},
    {"listen.admin", "127.0.0.1:9464"},
    {"listen.reflection", "true"},
    {"listen.allow_plaintext_off_host", "false"},
    {"engine.threads", "0"},
    {"engine.tile_tokens", "256"},
    {"engine.isa", "auto"},
    {"limits.max_tokens", "131072"},
    {"limits.max_request_bytes", "64GiB"},
    {"limits.max_inflight_bytes", "1GiB"},
    {"limits.max_inflight_transfers", "256"},
    {"limits.max_tenant_bytes", "0"},
    {"limits.tiles_in_flight", "2"},
    {"limits.idle_timeout", "60s"},
    {"drain.delay", "5s"},
    {"drain.deadline", "20s"},
    {"log.level", "info"},
    {"log.format", "auto"},
    {"metrics.latency_buckets",
     "0.0005,0.001,0.002,0.004,0.006,0.008,0.01,0.015,0.02,0.03,0.04,0.06,0.08,0.1,0.15,0.25,0.5,1,"
     "2.5,5,10"},
};
constexpr std::pair<const char*, const char*> kRouteDefaults[] = {
    {"stage", "live"},
    {"canary_share", "0"},
    {"allow_unproven", "false"},
    {"precision", "bf16"},
    {"policy.max_abs", "10000"},
    {"policy.max_covered_tokens", "0"},
    {"policy.min_covered_tokens", "1"},
    {"policy.native_tail", "1"},
    {"policy.max_hops", "1"},
    {"policy.shadow_rate", "0"},
    {"policy.salt", "kvbridge-shadow-v1"},
};

// The message that holds the last name of "a.b.c", made on the way, and that field.
std::pair<Message*, const FieldDescriptor*> Resolve(Message* message, absl::string_view setting) {
  const std::vector<std::string> names = absl::StrSplit(setting, '.');
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    message = message->GetReflection()->MutableMessage(
        message, message->GetDescriptor()->FindFieldByName(names[i]));
  }
  return {message, message->GetDescriptor()->FindFieldByName(names.back())};
}

absl::Status Set(LoadedConfig* loaded, const std::string& setting, absl::string_view text,
                 Origin origin, absl::string_view source) {
  const auto [message, field] = Resolve(&loaded->config, setting);
  if (absl::Status status = SetField(message, field, text, setting); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
  }
  loaded->origins[setting] = origin;
  return absl::OkStatus();
}

absl::Status FillDefaults(LoadedConfig* loaded) {
  for (const auto& [setting, text] : kDefaults) {
    if (loaded->origins.count(setting) > 0) continue;
    KVB_RETURN_IF_ERROR(Set(loaded, setting, text, Origin::kDefault, "default"));
  }
  for (int i = 0; i < loaded->config.routes_size(); ++i) {
    for (const auto& [name, text] : kRouteDefaults) {
      const std::string path = absl::StrCat("routes[", i, "].", name);
      if (!loaded->origins.emplace(path, Origin::kDefault).second) continue;
      const auto [message, field] = Resolve(loaded->config.mutable_routes(i), name);
      KVB_RETURN_IF_ERROR(SetField(message, field, text, path));
    }
  }
  return absl::OkStatus();
}

// Collects what is wrong, so that an operator sees all of it at once.
class Problems {
 public:
  template <typename T>
  void Expect(bool good, absl::string_view path, absl::string_view expected, const T& got) {
    if (!good) lines_.push_back(absl::StrCat(path, ": expected ", expected, ", got ", got));
  }
  void Quoted(bool good, absl::string_view path, absl::string_view expected,
              absl::string_view got) {
    Expect(good, path, expected, absl::StrCat("\"", got.substr(0, 80), "\""));
  }
  absl::Status status() const {
    if (lines_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
};

void CheckListen(const v1::ListenConfig& listen, Problems& problems) {
  problems.Expect(listen.grpc_size() > 0, "listen.grpc", "at least one address", 0);
  std::set<std::string> seen;
  const bool off_host = listen.allow_plaintext_off_host();
  constexpr const char* kLoopback =
      "a loopback or unix address (plaintext to other hosts needs listen.allow_plaintext_off_host)";
  for (int i = 0; i < listen.grpc_size(); ++i) {
    const std::string path = absl::StrCat("listen.grpc[", i, "]");
    const std::string& text = listen.grpc(i);
    const auto address = Address::Parse(text);
    problems.Quoted(address.ok(), path, "host:port or unix:/path", text);
    if (address.ok()) problems.Quoted(off_host || address->is_local(), path, kLoopback, text);
    const bool any_port = address.ok() && address->port == 0 && !address->is_unix();
    problems.Quoted(any_port || seen.insert(text).second, path, "an address listed once", text);
  }
  if (listen.admin() == "off") return;
  const auto admin = Address::Parse(listen.admin());
  problems.Quoted(admin.ok() && !admin->is_unix(), "listen.admin", "host:port or off",
                  listen.admin());
  if (admin.ok()) {
    problems.Quoted(off_host || admin->is_local(), "listen.admin", kLoopback, listen.admin());
  }
}

void CheckLimits(const v1::LimitsConfig& limits, Problems& problems) {
  constexpr const char* kPositive = "at least 1";
  problems.Expect(limits.max_tokens() > 0, "limits.max_tokens", kPositive, limits.max_tokens());
  problems.Expect(limits.max_request_bytes() > 0, "limits.max_request_bytes", kPositive,
                  limits.max_request_bytes());
  problems.Expect(limits.max_inflight_bytes() > 0, "limits.max_inflight_bytes", kPositive,
                  limits.max_inflight_bytes());
  problems.Expect(limits.max_inflight_transfers() > 0, "limits.max_inflight_transfers", kPositive,
                  limits.max_inflight_transfers());
  problems.Expect(limits.max_tenant_bytes() >= 0, "limits.max_tenant_bytes", "at least 0",
                  limits.max_tenant_bytes());
  problems.Expect(limits.tiles_in_flight() >= 1 && limits.tiles_in_flight() <= 64,
                  "limits.tiles_in_flight", "1 to 64", limits.tiles_in_flight());
  problems.Expect(limits.idle_timeout().seconds() > 0 || limits.idle_timeout().nanos() > 0,
                  "limits.idle_timeout", "more than 0s", limits.idle_timeout().seconds());
}

bool IsRouteName(absl::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  for (char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '.' && c != '_' && c != '-') {
      return false;
    }
  }
  return true;
}

void CheckPolicy(const v1::PolicyConfig& policy, const std::string& path, Problems& problems) {
  problems.Expect(policy.max_abs() > 0, path + ".max_abs", "a number above 0", policy.max_abs());
  problems.Expect(policy.max_covered_tokens() >= 0, path + ".max_covered_tokens", "at least 0",
                  policy.max_covered_tokens());
  problems.Expect(policy.min_covered_tokens() >= 1, path + ".min_covered_tokens", "at least 1",
                  policy.min_covered_tokens());
  problems.Expect(policy.native_tail() >= 1, path + ".native_tail", "at least 1",
                  policy.native_tail());
  problems.Expect(policy.max_hops() >= 1, path + ".max_hops", "at least 1", policy.max_hops());
  problems.Expect(policy.shadow_rate() >= 0 && policy.shadow_rate() <= 1, path + ".shadow_rate",
                  "0 to 1", policy.shadow_rate());
}

void CheckRoutes(const v1::Config& config, Problems& problems) {
  problems.Expect(config.routes_size() <= kMaxRoutes, "routes",
                  absl::StrCat("at most ", kMaxRoutes, " routes"), config.routes_size());
  if (config.routes_size() > kMaxRoutes) return;
  std::set<std::string> names;
  for (int i = 0; i < config.routes_size(); ++i) {
    const v1::RouteConfig& route = config.routes(i);
    const std::string path = absl::StrCat("routes[", i, "]");
    problems.Quoted(IsRouteName(route.name()), path + ".name", "1 to 63 characters of [a-z0-9._-]",
                    route.name());
    problems.Quoted(names.insert(route.name()).second, path + ".name", "a name used once",
                    route.name());
    problems.Quoted(!route.artifact().empty(), path + ".artifact", "a folder", route.artifact());
    problems.Quoted(route.source_config().empty() == route.target_config().empty(),
                    path + ".target_config", "both source_config and target_config or neither",
                    route.target_config());
    problems.Expect(route.canary_share() >= 0 && route.canary_share() <= 1, path + ".canary_share",
                    "0 to 1", route.canary_share());
    problems.Quoted(route.precision() == "bf16" || route.precision() == "f32", path + ".precision",
                    "bf16 or f32", route.precision());
    CheckPolicy(route.policy(), path + ".policy", problems);
  }
}

void CheckWord(absl::string_view path, absl::string_view got,
               std::initializer_list<absl::string_view> words, Problems& problems) {
  const bool known = std::find(words.begin(), words.end(), got) != words.end();
  problems.Quoted(known, path, absl::StrCat("one of ", absl::StrJoin(words, ", ")), got);
}

void CheckBuckets(const v1::MetricsConfig& metrics, Problems& problems) {
  double last = 0;
  for (int i = 0; i < metrics.latency_buckets_size(); ++i) {
    const double bound = metrics.latency_buckets(i);
    problems.Expect(std::isfinite(bound) && bound > last,
                    absl::StrCat("metrics.latency_buckets[", i, "]"),
                    absl::StrCat("a number above ", last, " (ascending, in seconds)"), bound);
    last = bound;
  }
  problems.Expect(metrics.latency_buckets_size() <= 40, "metrics.latency_buckets",
                  "at most 40 bounds", metrics.latency_buckets_size());
}

nlohmann::json ScalarJson(const Message& message, const FieldDescriptor* field, int index) {
  const std::string text = ScalarText(message, field, index);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
    case FieldDescriptor::CPPTYPE_ENUM:
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return text;
    default:
      return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
}

nlohmann::json ValueJson(const Message& message, const FieldDescriptor* field) {
  if (!field->is_repeated()) return ScalarJson(message, field, 0);
  nlohmann::json list = nlohmann::json::array();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    list.push_back(ScalarJson(message, field, i));
  }
  return list;
}

// Valid YAML: a JSON value is one.
std::string Dump(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Visits what is set, sections before their fields. Visitors are called with path, name and depth.
class Printer {
 public:
  explicit Printer(const LoadedConfig& loaded) : loaded_(loaded) {}

  void Yaml(const Message& message, const std::string& path, const std::string& indent,
            std::string* out) const {
    ForEach(message, path, [&](const FieldDescriptor* field, const std::string& child) {
      const auto* reflection = message.GetReflection();
      if (IsScalar(field)) {
        absl::StrAppend(out, indent, field->name(), ": ", Dump(ValueJson(message, field)), "  # ",
                        OriginOf(child), "\n");
      } else if (!field->is_repeated()) {
        absl::StrAppend(out, indent, field->name(), ":\n");
        Yaml(reflection->GetMessage(message, field), child, indent + "  ", out);
      } else {
        absl::StrAppend(out, indent, field->name(), ":\n");
        for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
          absl::StrAppend(out, indent, "  -\n");
          Yaml(reflection->GetRepeatedMessage(message, field, i), absl::StrCat(child, "[", i, "]"),
               indent + "    ", out);
        }
      }
    });
  }

  nlohmann::json Json(const Message& message, const std::string& path) const {
    nlohmann::json object = nlohmann::json::object();
    ForEach(message, path, [&](const FieldDescriptor* field, const std::string& child) {
      const auto* reflection = message.GetReflection();
      nlohmann::json& value = object[field->name()];
      if (IsScalar(field)) {
        value = ValueJson(message, field);
      } else if (!field->is_repeated()) {
        value = Json(reflection->GetMessage(message, field), child);
      } else {
        value = nlohmann::json::array();
        for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
          value.push_back(Json(reflection->GetRepeatedMessage(message, field, i),
                               absl::StrCat(child, "[", i, "]")));
        }
      }
    });
    return object;
  }

 private:
  template <typename Visit>
  void ForEach(const Message& message, const std::string& path, Visit visit) const {
    const Descriptor* type = message.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      const std::string child =
          path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
      const bool section = !IsScalar(field);
      const bool present = field->is_repeated()
                               ? message.GetReflection()->FieldSize(message, field) > 0
                               : message.GetReflection()->HasField(message, field);
      if (section ? present : loaded_.origins.count(child) > 0) visit(field, child);
    }
  }

  absl::string_view OriginOf(const std::string& path) const {
    return Name(loaded_.origins.at(path));
  }

  const LoadedConfig& loaded_;
};

}  // namespace

absl::string_view Name(Origin origin) {
  constexpr absl::string_view kNames[] = {"default", "file", "env", "flag"};
  return kNames[static_cast<int>(origin)];
}

std::vector<std::string> Settings() {
  std::vector<std::string> settings;
  const Descriptor* type = v1::Config::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* section = type->field(i);
    if (section->is_repeated()) continue;
    for (int j = 0; j < section->message_type()->field_count(); ++j) {
      settings.push_back(
          absl::StrCat(section->name(), ".", section->message_type()->field(j)->name()));
    }
  }
  return settings;
}

std::string EnvName(absl::string_view setting) {
  return absl::StrCat("KVBRIDGE_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(setting, {{".", "_"}})));
}

std::string FlagName(absl::string_view setting) {
  return absl::StrCat("--", absl::StrReplaceAll(setting, {{".", "-"}, {"_", "-"}}));
}

absl::StatusOr<LoadedConfig> LoadConfig(const ConfigSources& sources) {
  LoadedConfig loaded;
  KVB_RETURN_IF_ERROR(
      FillFromYaml(sources.file_text, sources.file_name, &loaded.config,
                   [&loaded](const std::string& path) { loaded.origins[path] = Origin::kFile; }));
  const std::vector<std::string> settings = Settings();
  for (const auto& [variable, text] : sources.env) {
    for (const std::string& setting : settings) {
      if (variable != EnvName(setting)) continue;
      KVB_RETURN_IF_ERROR(Set(&loaded, setting, text, Origin::kEnv, variable));
    }
  }
  for (const auto& [setting, text] : sources.flags) {
    KVB_RETURN_IF_ERROR(Set(&loaded, setting, text, Origin::kFlag, FlagName(setting)));
  }
  KVB_RETURN_IF_ERROR(FillDefaults(&loaded));
  KVB_RETURN_IF_ERROR(Validate(loaded.config));
  return loaded;
}

absl::Status Validate(const v1::Config& config) {
  Problems problems;
  CheckListen(config.listen(), problems);
  problems.Expect(config.engine().threads() >= 0 && config.engine().threads() <= 1024,
                  "engine.threads", "0 to 1024", config.engine().threads());
  problems.Expect(config.engine().tile_tokens() >= 16 && config.engine().tile_tokens() <= 4096,
                  "engine.tile_tokens", "16 to 4096", config.engine().tile_tokens());
  CheckWord("engine.isa", config.engine().isa(), {"auto", "amx", "avx512bf16", "avx2", "portable"},
            problems);
  CheckLimits(config.limits(), problems);
  CheckRoutes(config, problems);
  CheckWord("log.level", config.log().level(), {"debug", "info", "warn", "error"}, problems);
  CheckWord("log.format", config.log().format(), {"auto", "json", "text"}, problems);
  CheckBuckets(config.metrics(), problems);
  return problems.status();
}

std::string PrintYaml(const LoadedConfig& loaded) {
  std::string text;
  Printer(loaded).Yaml(loaded.config, "", "", &text);
  return text;
}

std::string PrintJson(const LoadedConfig& loaded) {
  nlohmann::json origins = nlohmann::json::object();
  for (const auto& [path, origin] : loaded.origins) origins[path] = std::string(Name(origin));
  const nlohmann::json document = {{"config", Printer(loaded).Json(loaded.config, "")},
                                   {"origins", std::move(origins)}};
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace kvbridge::server
