#include "server/config.h"

#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"

#include "core/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"
#include "server/config_tree.h"

namespace kvbridge::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// config.proto's defaults, in the form that a person would write.
constexpr std::pair<const char*, const char*> kDefaults[] = {
    {"listen.grpc", "127.0.0.1:50061"},
    {"listen.admin", "127.0.0.1:9464"},
    {"listen.reflection", "true"},
    {"listen.allow_plaintext_off_host", "false"},
    {"listen.tls.cert_file", ""},
    {"listen.tls.key_file", ""},
    {"listen.tls.client_ca_file", ""},
    {"listen.tls.require_client_cert", "true"},
    {"listen.tls.refresh_interval", "10s"},
    {"listen.health", ""},
    {"listen.max_connection_age", "0s"},
    {"listen.max_connection_age_grace", "60s"},
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
    {"memory.socket", ""},
    {"memory.max_bytes", "8GiB"},
    {"memory.max_tenant_bytes", "0"},
    {"memory.max_sessions", "64"},
    {"memory.lease", "30s"},
    {"memory.ticket_life", "10s"},
    {"memory.huge_pages", "true"},
    {"memory.allowed_uids", ""},
    {"auth.tokens_file", ""},
    {"ucx.listen", ""},
    {"ucx.allow_plaintext_off_host", "false"},
    {"ucx.transports", "tcp"},
    {"ucx.frames_in_flight", "4"},
    {"ucx.timeout", "10s"},
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
    {"circuit.enabled", "true"},
    {"circuit.window", "30s"},
    {"circuit.min_transfers", "20"},
    {"circuit.max_bad_share", "0.5"},
    {"circuit.open_for", "30s"},
    {"circuit.probes", "3"},
    {"quality.enabled", "true"},
    {"quality.margin", "1.5"},
    {"quality.false_alarm_reports", "10000"},
    {"drill.share", "0"},
};
constexpr std::pair<const char*, const char*> kTenantDefaults[] = {
    {"weight", "1"}, {"max_inflight_bytes", "0"}, {"max_memory_bytes", "0"}};
constexpr std::pair<const char*, const char*> kNamedShmDefaults[] = {{"tenant", ""}};

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

using Defaults = absl::Span<const std::pair<const char*, const char*>>;

// Of one entry of a list, whose own path is `entry`.
absl::Status FillEntry(LoadedConfig* loaded, Message* message, const std::string& entry,
                       Defaults defaults) {
  for (const auto& [name, text] : defaults) {
    const std::string path = absl::StrCat(entry, ".", name);
    if (!loaded->origins.emplace(path, Origin::kDefault).second) continue;
    const auto [section, field] = Resolve(message, name);
    KVB_RETURN_IF_ERROR(SetField(section, field, text, path));
  }
  return absl::OkStatus();
}

absl::Status FillDefaults(LoadedConfig* loaded) {
  v1::Config& config = loaded->config;
  for (const auto& [setting, text] : kDefaults) {
    if (loaded->origins.count(setting) > 0) continue;
    KVB_RETURN_IF_ERROR(Set(loaded, setting, text, Origin::kDefault, "default"));
  }
  for (int i = 0; i < config.routes_size(); ++i) {
    KVB_RETURN_IF_ERROR(FillEntry(loaded, config.mutable_routes(i), absl::StrCat("routes[", i, "]"),
                                  kRouteDefaults));
  }
  for (int i = 0; i < config.tenants_size(); ++i) {
    KVB_RETURN_IF_ERROR(FillEntry(loaded, config.mutable_tenants(i),
                                  absl::StrCat("tenants[", i, "]"), kTenantDefaults));
  }
  for (int i = 0; i < config.memory().named_shm_size(); ++i) {
    KVB_RETURN_IF_ERROR(FillEntry(loaded, config.mutable_memory()->mutable_named_shm(i),
                                  absl::StrCat("memory.named_shm[", i, "]"), kNamedShmDefaults));
  }
  return absl::OkStatus();
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

// Lists of sections have no settings: a flag could not say which entry it means.
void CollectSettings(const Descriptor& type, const std::string& prefix,
                     std::vector<std::string>* settings) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const std::string path = prefix + field->name();
    if (IsScalar(field)) {
      settings->push_back(path);
    } else if (!field->is_repeated()) {
      CollectSettings(*field->message_type(), path + ".", settings);
    }
  }
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
  CollectSettings(*v1::Config::descriptor(), "", &settings);
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
