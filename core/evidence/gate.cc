#include "core/evidence/gate.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"
#include "core/evidence/yaml_json.h"

namespace kvbridge::evidence {
namespace {

using base::Json;

constexpr absl::string_view kSchema = "kvbridge-gate/1";
constexpr double kAny = std::numeric_limits<double>::max();

absl::StatusOr<double> Number(const Json& object, absl::string_view key, absl::string_view path,
                              double min, double max) {
  KVB_ASSIGN_OR_RETURN(const double value, base::GetFinite(object, key, path));
  if (value >= min && value <= max) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ".", key, ": expected ",
                   max == kAny ? absl::StrCat(min, " or more") : absl::StrCat(min, " to ", max),
                   ", got ", value));
}

absl::Status Optional(const Json& object, const char* key, absl::string_view path, double min,
                      double max, std::optional<double>* out) {
  if (!object.contains(key)) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(*out, Number(object, key, path, min, max));
  return absl::OkStatus();
}

absl::Status NearerFromJson(const Json& json, const std::string& path, DomainRules* rules) {
  if (!json.contains("nearer_than")) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(const Json* controls, base::GetObject(json, "nearer_than", path));
  const std::string at = path + ".nearer_than";
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(*controls, {"none", "raw", "random"}, at));
  for (const auto& [control, share] : controls->items()) {
    KVB_ASSIGN_OR_RETURN(rules->nearer_than[control], Number(*controls, control, at, 0, 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<DomainRules> RulesFromJson(const Json& json, const std::string& path) {
  if (!json.is_object() || json.empty()) {
    return absl::InvalidArgumentError(path + ": expected an object with at least one rule");
  }
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(json,
                              {"kl_mean_max", "kl_p95_max", "top1_min", "gap_min", "context_min",
                               "worst_layer_cosine_min", "nearer_than"},
                              path));
  DomainRules rules;
  KVB_RETURN_IF_ERROR(Optional(json, "kl_mean_max", path, 0, kAny, &rules.kl_mean_max));
  KVB_RETURN_IF_ERROR(Optional(json, "kl_p95_max", path, 0, kAny, &rules.kl_p95_max));
  KVB_RETURN_IF_ERROR(Optional(json, "top1_min", path, 0, 1, &rules.top1_min));
  KVB_RETURN_IF_ERROR(Optional(json, "gap_min", path, -kAny, 1, &rules.gap_min));
  KVB_RETURN_IF_ERROR(Optional(json, "context_min", path, -kAny, 1, &rules.context_min));
  KVB_RETURN_IF_ERROR(
      Optional(json, "worst_layer_cosine_min", path, -1, 1, &rules.worst_layer_cosine_min));
  KVB_RETURN_IF_ERROR(NearerFromJson(json, path, &rules));
  return rules;
}

absl::Status CheckHead(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("gate: expected an object");
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      json, {"schema", "name", "native_tail", "min_sequences", "identity_kl_max", "domains"},
      "gate"));
  KVB_ASSIGN_OR_RETURN(const std::string schema, base::GetString(json, "schema", "gate"));
  if (schema == kSchema) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("gate.schema: expected ", kSchema, ", got \"", schema.substr(0, 40), "\""));
}

absl::StatusOr<Gate> GateFromJson(const Json& json) {
  KVB_RETURN_IF_ERROR(CheckHead(json));
  Gate gate;
  KVB_ASSIGN_OR_RETURN(gate.name, base::GetString(json, "name", "gate"));
  KVB_ASSIGN_OR_RETURN(gate.native_tail, base::GetInt(json, "native_tail", "gate", 1, 1 << 20));
  KVB_ASSIGN_OR_RETURN(gate.min_sequences, base::GetInt(json, "min_sequences", "gate", 2, 1 << 20));
  KVB_ASSIGN_OR_RETURN(gate.identity_kl_max, Number(json, "identity_kl_max", "gate", 0, kAny));
  KVB_ASSIGN_OR_RETURN(const Json* domains, base::GetObject(json, "domains", "gate"));
  for (const auto& [domain, rules] : domains->items()) {
    KVB_ASSIGN_OR_RETURN(gate.domains[domain],
                         RulesFromJson(rules, absl::StrCat("gate.domains.", domain)));
  }
  if (!gate.domains.empty()) return gate;
  return absl::InvalidArgumentError("gate.domains: expected at least one");
}

}  // namespace

const DomainRules* Gate::Find(const std::string& domain) const {
  auto it = domains.find(domain);
  if (it == domains.end()) it = domains.find("*");
  return it == domains.end() ? nullptr : &it->second;
}

absl::StatusOr<Gate> ParseGate(absl::string_view text, absl::string_view what) {
  KVB_ASSIGN_OR_RETURN(const Json json, JsonFromYaml(text, what));
  KVB_ASSIGN_OR_RETURN(Gate gate, GateFromJson(json));
  KVB_ASSIGN_OR_RETURN(gate.digest, crypto::Sha256Hex(text));
  return gate;
}

}  // namespace kvbridge::evidence
