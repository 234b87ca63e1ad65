#include "server/route_table.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/model/hf_config.h"
#include "server/convert.h"

namespace kvbridge::server {
namespace {

using guard::Outcome;
using guard::Reason;
using guard::Refusal;

constexpr uint64_t kMaxModelConfigBytes = base::kMiB;

absl::string_view LoadResult(const absl::Status& status) {
  if (status.ok()) return "ok";
  if (absl::IsDataLoss(status)) return "integrity";
  return absl::IsNotFound(status) || absl::IsUnavailable(status) ? "io" : "incompatible";
}

// The artifact itself is at fault, rather than its absence.
bool IsDamaged(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status);
}

// What formats without RoPE need beside them.
absl::StatusOr<std::optional<model::ModelSpec>> ReadModelConfig(const std::string& path,
                                                                absl::string_view setting) {
  if (path.empty()) return std::nullopt;
  KVB_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxModelConfigBytes));
  KVB_ASSIGN_OR_RETURN(model::ModelSpec spec, model::SpecFromHfConfig(text, {}, setting));
  return spec;
}

absl::StatusOr<store::LoadRequest> ToLoadRequest(const v1::RouteConfig& config,
                                                 absl::string_view path) {
  store::LoadRequest request;
  request.dir = path.empty() ? config.artifact() : std::string(path);
  KVB_ASSIGN_OR_RETURN(request.source, ReadModelConfig(config.source_config(), "source_config"));
  KVB_ASSIGN_OR_RETURN(request.target, ReadModelConfig(config.target_config(), "target_config"));
  request.precision =
      config.precision() == "f32" ? device::Precision::kF32 : device::Precision::kBf16;
  return request;
}

bool SameModel(const model::ModelSpec& a, const model::ModelSpec& b) {
  return a.identity.model_id == b.identity.model_id && a.identity.revision == b.identity.revision;
}

}  // namespace

guard::Refusal RouteSnapshot::WhyNot() const {
  if (IsDamaged(last_error)) {
    return guard::Fallback(Reason::kArtifactIntegrity,
                           absl::StrCat("route ", name, ": the artifact failed verification"));
  }
  return guard::Fallback(Reason::kArtifactUnavailable,
                         absl::StrCat("route ", name, ": no artifact is loaded"));
}

RouteTable::RouteTable(const v1::Config& config, Deps deps) : deps_(std::move(deps)) {
  for (const v1::RouteConfig& route : config.routes()) {
    routes_.emplace(route.name(), Route{route, ToPolicy(route)});
    if (route.allow_unproven()) deps_.metrics->UnprovenAllowed(route.name());
  }
}

std::vector<std::string> RouteTable::names() const {
  std::vector<std::string> names;
  for (const auto& [name, route] : routes_) names.push_back(name);
  return names;
}

absl::StatusOr<const RouteTable::Route*> RouteTable::Find(absl::string_view name) const {
  const auto it = routes_.find(std::string(name));
  if (it != routes_.end()) return &it->second;
  return absl::NotFoundError(
      absl::StrCat("route: expected a configured name, got \"", name.substr(0, 80), "\""));
}

RouteSnapshot RouteTable::Snapshot(const Route& route,
                                   const std::vector<store::PairStatus>& pairs) const {
  RouteSnapshot now{.name = route.config.name(), .policy = route.policy};
  for (const store::PairStatus& pair : pairs) {
    if (pair.pair != now.name) continue;
    now.loaded = pair.loaded;
    now.last_error = pair.last_error;
  }
  return now;
}

absl::StatusOr<RouteSnapshot> RouteTable::Get(absl::string_view name) const {
  KVB_ASSIGN_OR_RETURN(const Route* route, Find(name));
  const std::vector<store::PairStatus> pairs = deps_.store->List();
  base::MutexLock lock(&mutex_);
  return Snapshot(*route, pairs);
}

std::vector<RouteSnapshot> RouteTable::All() const {
  const std::vector<store::PairStatus> pairs = deps_.store->List();
  std::vector<RouteSnapshot> all;
  base::MutexLock lock(&mutex_);
  for (const auto& [name, route] : routes_) all.push_back(Snapshot(route, pairs));
  return all;
}

RouteTable::Choice RouteTable::Choose(const guard::TransferSpec& spec) const {
  if (!spec.route.empty()) {
    const auto route = Get(spec.route);
    if (!route.ok()) {
      return {"", {}, guard::Fallback(Reason::kInvalidRequest, route.status().message())};
    }
    if (route->serving()) return {route->name, route->policy, route->pin()};
    return {route->name, route->policy, route->WhyNot()};
  }
  for (const RouteSnapshot& route : All()) {
    if (!route.serving()) continue;
    const mapper::Mapper& mapper = route.loaded->mapper();
    if (SameModel(mapper.source, spec.source) && SameModel(mapper.target, spec.target)) {
      return {route.name, route.policy, route.pin()};
    }
  }
  return {"",
          {},
          Refusal{Outcome::kUnsupported, Reason::kArtifactUnavailable,
                  "source, target: no route serves this pair of models"}};
}

absl::Status RouteTable::Load(absl::string_view name, absl::string_view path) {
  KVB_ASSIGN_OR_RETURN(const Route* route, Find(name));
  const absl::Time start = deps_.clock->Now();
  auto request = ToLoadRequest(route->config, path);
  auto loaded = request.ok() ? deps_.store->Load(route->config.name(), *request)
                             : absl::StatusOr<store::PinnedMapper>(request.status());
  deps_.metrics->ArtifactLoad(name, LoadResult(loaded.status()), deps_.clock->Now() - start);
  if (loaded.ok()) {
    Report(*route, **loaded);
    // Only estimates need it: a transfer that fails where this does says so itself.
    const absl::Status measured = deps_.engine->MeasureRate(*(*loaded)->resident);
    if (!measured.ok()) {
      deps_.log->Warn("the map's rate was not measured",
                      {{"pair", route->config.name()}, {"error", std::string(measured.message())}});
    }
  } else {
    deps_.log->Error(
        "artifact was not loaded",
        {{"pair", route->config.name()}, {"error", std::string(loaded.status().message())}});
  }
  Changed();
  return loaded.status();
}

void RouteTable::Report(const Route& route, const store::LoadedMapper& loaded) const {
  const std::string& name = route.config.name();
  const mapper::Mapper& mapper = loaded.mapper();
  const std::string artifact = mapper.digest.substr(0, 12);
  const artifact::Verdict verdict = loaded.provenance.verdict();
  deps_.metrics->ArtifactResident(
      {.pair = name,
       .artifact = artifact,
       .source = mapper.source.identity.model_id,
       .target = mapper.target.identity.model_id,
       .dtype = loaded.resident->precision() == device::Precision::kBf16 ? "bf16" : "f32",
       .bytes = loaded.resident->resident_bytes()});
  deps_.log->Info("artifact is resident", {{"pair", name},
                                           {"artifact", artifact},
                                           {"verdict", std::string(artifact::Name(verdict))},
                                           {"bytes", loaded.resident->resident_bytes()},
                                           {"seconds", absl::ToDoubleSeconds(loaded.load_time)}});
  if (verdict != artifact::Verdict::kPass && route.config.allow_unproven()) {
    deps_.log->Warn("route serves an artifact without passing evidence", {{"pair", name}});
  }
  if (Get(name)->lacks_evidence()) {
    deps_.log->Warn(std::string(kNeverApplies), {{"pair", name}});
  }
}

absl::Status RouteTable::Unload(absl::string_view name) {
  KVB_ASSIGN_OR_RETURN(const Route* route, Find(name));
  KVB_RETURN_IF_ERROR(deps_.store->Unload(name));
  deps_.metrics->ArtifactGone(name);
  deps_.log->Info("artifact was unloaded", {{"pair", route->config.name()}});
  Changed();
  return absl::OkStatus();
}

absl::StatusOr<guard::RouteStage> RouteTable::SetStage(absl::string_view name,
                                                       guard::RouteStage stage,
                                                       double canary_share) {
  KVB_ASSIGN_OR_RETURN(const RouteSnapshot now, Get(name));
  const bool applies = stage == guard::RouteStage::kCanary || stage == guard::RouteStage::kLive;
  if (applies && !now.proven() && !now.policy.allow_unproven) {
    return absl::FailedPreconditionError(
        absl::StrCat("stage: expected off or shadow for an artifact without passing evidence, got ",
                     guard::Name(stage)));
  }
  guard::RoutePolicy policy = now.policy;
  policy.stage = stage;
  policy.canary_share = canary_share;
  KVB_RETURN_IF_ERROR(guard::Validate(policy));
  {
    base::MutexLock lock(&mutex_);
    routes_.find(now.name)->second.policy = policy;
  }
  deps_.log->Info("route changed its stage", {{"pair", now.name},
                                              {"from", std::string(guard::Name(now.policy.stage))},
                                              {"to", std::string(guard::Name(stage))}});
  Changed();
  return now.policy.stage;
}

void RouteTable::Changed() const {
  if (on_change_) on_change_();
}

}  // namespace kvbridge::server
