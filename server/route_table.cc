#include "server/route_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "core/artifact/fit_r2.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/base/utf8.h"
#include "core/model/hf_config.h"
#include "server/convert.h"

namespace kvbridge::server {
namespace {

using guard::Outcome;
using guard::Reason;
using guard::Refusal;

constexpr uint64_t kMaxModelConfigBytes = base::kMiB;
// Of a route that was live and is no longer trusted: enough reports to go on judging it by.
constexpr double kStepBackShare = 0.5;

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

bool SameArtifact(const v1::RouteConfig& a, const v1::RouteConfig& b) {
  return a.artifact() == b.artifact() && a.source_config() == b.source_config() &&
         a.target_config() == b.target_config() && a.precision() == b.precision();
}

bool SameStage(const v1::RouteConfig& a, const v1::RouteConfig& b) {
  return a.stage() == b.stage() && a.canary_share() == b.canary_share();
}

RouteChange StageChange(const std::string& pair, guard::RouteStage before, guard::RouteStage now,
                        const char* cause, const char* detail = "") {
  return {.pair = pair,
          .what = "stage",
          .from = std::string(guard::Name(before)),
          .to = std::string(guard::Name(now)),
          .cause = cause,
          .detail = detail};
}

std::string WordOf(const guard::Drill& drill) {
  return drill.on() ? std::string(guard::Name(drill.reason)) : "off";
}

bool SameModel(const model::ModelSpec& a, const model::ModelSpec& b) {
  return a.identity.model_id == b.identity.model_id && a.identity.revision == b.identity.revision;
}

bool ServesPair(const RouteSnapshot& route, const guard::TransferSpec& spec) {
  if (!route.serving()) return false;
  const mapper::Mapper& mapper = route.loaded->mapper();
  return SameModel(mapper.source, spec.source) && SameModel(mapper.target, spec.target);
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

std::string RouteSnapshot::Caveats() const {
  std::vector<std::string> all;
  if (lacks_evidence()) all.emplace_back(RouteTable::kNeverApplies);
  if (policy.drill.on()) all.push_back(policy.drill.Sentence());
  return absl::StrJoin(all, "; ");
}

RouteTable::RouteTable(const v1::Config& config, Deps deps) : deps_(std::move(deps)) {
  base::MutexLock lock(&mutex_);
  for (const v1::RouteConfig& route : config.routes()) {
    const auto made = routes_.emplace(route.name(), MakeRoute(route)).first;
    TellDrill(route.name(), {}, made->second.policy.drill);  // nobody listens yet
  }
}

RouteTable::Route RouteTable::MakeRoute(const v1::RouteConfig& config) {
  deps_.metrics->AddPair(config.name());
  if (config.allow_unproven()) deps_.metrics->UnprovenAllowed(config.name(), true);
  return {std::make_shared<const v1::RouteConfig>(config), ToPolicy(config),
          std::make_shared<RouteWatch>(
              config.name(), config,
              RouteWatch::Deps{&deps_.metrics->operations(), deps_.clock, deps_.changed})};
}

std::optional<RouteChange> RouteTable::TellDrill(const std::string& pair,
                                                 const guard::Drill& before,
                                                 const guard::Drill& now) const {
  if (now == before || !(now.on() || before.on())) return std::nullopt;
  deps_.metrics->DrillIs(pair, now.share);
  if (now.on()) deps_.log->Warn(now.Sentence(), {{"pair", pair}});
  return RouteChange{.pair = pair,
                     .what = "drill",
                     .from = WordOf(before),
                     .to = WordOf(now),
                     .cause = "reload",
                     .detail = now.on() ? now.Sentence() : ""};
}

std::vector<std::string> RouteTable::Apply(const v1::Config& config) {
  std::vector<std::string> to_load;
  std::vector<std::string> stage_stays;
  std::vector<RouteChange> changes;
  const auto tell_drill = [&](const std::string& pair, const guard::Drill& before,
                              const guard::Drill& now) {
    if (auto change = TellDrill(pair, before, now)) changes.push_back(*std::move(change));
  };
  std::map<std::string, Route, std::less<>> next;
  std::map<std::string, Route, std::less<>> gone;
  {
    base::MutexLock lock(&mutex_);
    gone = routes_;
  }
  for (const v1::RouteConfig& route : config.routes()) {
    if (auto stays = gone.extract(route.name())) next.insert(std::move(stays));
  }
  // First, for those that come may need their place.
  for (const auto& [name, route] : gone) {
    tell_drill(name, route.policy.drill, {});
    deps_.metrics->RemovePair(name);
  }
  for (const v1::RouteConfig& route : config.routes()) {
    const auto stays = next.find(route.name());
    if (stays == next.end()) {
      const auto made = next.emplace(route.name(), MakeRoute(route)).first;
      tell_drill(route.name(), {}, made->second.policy.drill);
      to_load.push_back(route.name());
      continue;
    }
    const Route old = stays->second;
    if (!SameArtifact(*old.config, route)) to_load.push_back(route.name());
    Reconfigure(route, &stays->second);
    const guard::RoutePolicy& policy = stays->second.policy;
    tell_drill(route.name(), old.policy.drill, policy.drill);
    if (SameStage(*old.config, route)) {
      stage_stays.push_back(route.name());
    } else if (policy.stage != old.policy.stage) {
      changes.push_back(StageChange(route.name(), old.policy.stage, policy.stage, "reload"));
    }
  }
  {
    base::MutexLock lock(&mutex_);
    // As an operator, or what was reported, has set it, meanwhile too.
    for (const std::string& name : stage_stays) {
      const guard::RoutePolicy& now = routes_.find(name)->second.policy;
      next.find(name)->second.policy.stage = now.stage;
      next.find(name)->second.policy.canary_share = now.canary_share;
    }
    routes_.swap(next);
  }
  for (const auto& [name, route] : gone) {
    (void)deps_.store->Unload(name);  // it may have had none
    deps_.log->Info("route is gone", {{"pair", name}});
  }
  for (const RouteChange& change : changes) deps_.changed(change);
  Changed();
  return to_load;
}

void RouteTable::Reconfigure(const v1::RouteConfig& config, Route* route) const {
  route->policy = ToPolicy(config);
  route->config = std::make_shared<const v1::RouteConfig>(config);
  route->watch->Configure(config);
  deps_.metrics->UnprovenAllowed(config.name(), config.allow_unproven());
}

std::vector<std::string> RouteTable::names() const {
  base::MutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, route] : routes_) names.push_back(name);
  return names;
}

absl::StatusOr<RouteTable::Route> RouteTable::Find(absl::string_view name) const {
  base::MutexLock lock(&mutex_);
  const auto it = routes_.find(std::string(name));
  if (it != routes_.end()) return it->second;
  return absl::NotFoundError(
      absl::StrCat("route: expected a configured name, got \"", base::Clip(name, 80), "\""));
}

RouteSnapshot RouteTable::Snapshot(const Route& route,
                                   const std::vector<store::PairStatus>& pairs) const {
  RouteSnapshot now{.name = route.config->name(), .policy = route.policy, .watch = route.watch};
  for (const store::PairStatus& pair : pairs) {
    if (pair.pair != now.name) continue;
    now.loaded = pair.loaded;
    now.last_error = pair.last_error;
  }
  return now;
}

absl::StatusOr<RouteSnapshot> RouteTable::Get(absl::string_view name) const {
  KVB_ASSIGN_OR_RETURN(const Route route, Find(name));
  return Snapshot(route, deps_.store->List());
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
      return {"", {}, guard::Fallback(Reason::kInvalidRequest, route.status().message()), nullptr};
    }
    return Try(*route);
  }
  for (const RouteSnapshot& route : All()) {
    if (ServesPair(route, spec)) return Try(route);
  }
  return {"",
          {},
          Refusal{Outcome::kUnsupported, Reason::kArtifactUnavailable,
                  "source, target: no route serves this pair of models"},
          nullptr};
}

bool RouteTable::MayApply(const guard::TransferSpec& spec) const {
  for (const RouteSnapshot& route : All()) {
    if (!spec.route.empty() && route.name != spec.route) continue;
    if (!ServesPair(route, spec)) continue;
    const std::string& digest = route.loaded->mapper().digest;
    return route.past_shadow() && !route.lacks_evidence() &&
           (spec.artifact_digest.empty() || spec.artifact_digest == digest);
  }
  return false;
}

RouteTable::Choice RouteTable::Try(const RouteSnapshot& route) const {
  if (!route.serving()) return {route.name, route.policy, route.WhyNot(), nullptr};
  // One that is off tries nothing.
  if (!route.enabled()) return {route.name, route.policy, route.pin(), nullptr};
  if (!route.watch->Admit()) {
    return {route.name, route.policy,
            guard::Fallback(Reason::kRouteDisabled,
                            absl::StrCat("route ", route.name, ": its circuit is open")),
            nullptr};
  }
  return {route.name, route.policy, route.pin(), std::make_shared<RouteTry>(route.watch)};
}

absl::Status RouteTable::Load(absl::string_view name, absl::string_view path) {
  KVB_ASSIGN_OR_RETURN(const Route route, Find(name));
  const absl::Time start = deps_.clock->Now();
  auto request = ToLoadRequest(*route.config, path);
  auto loaded = request.ok() ? deps_.store->Load(route.config->name(), *request)
                             : absl::StatusOr<store::PinnedMapper>(request.status());
  deps_.metrics->ArtifactLoad(name, LoadResult(loaded.status()), deps_.clock->Now() - start);
  if (const auto still = Find(name); !still.ok()) {  // it went meanwhile
    (void)deps_.store->Unload(name);
    return still.status();
  }
  if (loaded.ok()) {
    Report(route, **loaded);
    // Only estimates need it: a transfer that fails where this does says so itself.
    const absl::Status measured = deps_.engine->MeasureRate(*(*loaded)->resident);
    if (!measured.ok()) {
      deps_.log->Warn("the map's rate was not measured",
                      {{"pair", route.config->name()}, {"error", std::string(measured.message())}});
    }
  } else {
    deps_.log->Error(
        "artifact was not loaded",
        {{"pair", route.config->name()}, {"error", std::string(loaded.status().message())}});
  }
  Changed();
  return loaded.status();
}

void RouteTable::Report(const Route& route, const store::LoadedMapper& loaded) const {
  const std::string& name = route.config->name();
  route.watch->Judge(loaded.provenance, route.policy.native_tail);
  const mapper::Mapper& mapper = loaded.mapper();
  const std::string artifact = mapper.digest.substr(0, 12);
  const artifact::FitR2 fit = artifact::FitR2Of(loaded.provenance);
  const artifact::Verdict verdict = loaded.provenance.verdict();
  deps_.metrics->ArtifactResident(
      {.pair = name,
       .artifact = artifact,
       .source = mapper.source.identity.model_id,
       .target = mapper.target.identity.model_id,
       .dtype = loaded.resident->precision() == device::Precision::kBf16 ? "bf16" : "f32",
       .bytes = loaded.resident->resident_bytes(),
       .keys = {fit.keys.min, fit.keys.mean},
       .values = {fit.values.min, fit.values.mean}});
  deps_.log->Info("artifact is resident", {{"pair", name},
                                           {"artifact", artifact},
                                           {"verdict", std::string(artifact::Name(verdict))},
                                           {"bytes", loaded.resident->resident_bytes()},
                                           {"seconds", absl::ToDoubleSeconds(loaded.load_time)}});
  if (verdict != artifact::Verdict::kPass && route.config->allow_unproven()) {
    deps_.log->Warn("route serves an artifact without passing evidence", {{"pair", name}});
  }
  if (const auto now = Get(name); now.ok() && now->lacks_evidence()) {
    deps_.log->Warn(std::string(kNeverApplies), {{"pair", name}});
  }
}

absl::Status RouteTable::Unload(absl::string_view name) {
  KVB_ASSIGN_OR_RETURN(const Route route, Find(name));
  KVB_RETURN_IF_ERROR(deps_.store->Unload(name));
  deps_.metrics->ArtifactGone(name);
  deps_.log->Info("artifact was unloaded", {{"pair", route.config->name()}});
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
  policy.canary_share = canary_share;
  KVB_RETURN_IF_ERROR(guard::Validate(policy));
  KVB_RETURN_IF_ERROR(Take(now.name, stage, canary_share));
  deps_.changed(StageChange(now.name, now.policy.stage, stage, "operator"));
  Changed();
  return now.policy.stage;
}

absl::Status RouteTable::Take(const std::string& name, guard::RouteStage stage,
                              double canary_share) {
  base::MutexLock lock(&mutex_);
  const auto it = routes_.find(name);
  if (it == routes_.end()) return absl::NotFoundError("route: it is no longer configured");
  it->second.policy.stage = stage;
  it->second.policy.canary_share = canary_share;
  return absl::OkStatus();
}

absl::Status RouteTable::OverrideCircuit(absl::string_view name, guard::CircuitOverride override) {
  KVB_ASSIGN_OR_RETURN(const Route route, Find(name));
  route.watch->Override(override);
  return absl::OkStatus();
}

absl::Status RouteTable::ReportQuality(absl::string_view name, absl::string_view artifact_digest,
                                       double kl_nats, double disagreement) {
  KVB_ASSIGN_OR_RETURN(const RouteSnapshot route, Get(name));
  if (!route.serving() || route.loaded->mapper().digest != artifact_digest) {
    return absl::FailedPreconditionError(
        "artifact_digest: expected the artifact that is in use, got another");
  }
  if (route.watch->Report(kl_nats, disagreement)) StepBack(route);
  return absl::OkStatus();
}

void RouteTable::StepBack(const RouteSnapshot& route) {
  guard::RoutePolicy policy = route.policy;
  switch (policy.stage) {
    case guard::RouteStage::kLive:
      policy.stage = guard::RouteStage::kCanary;
      policy.canary_share = kStepBackShare;
      break;
    case guard::RouteStage::kCanary:
      policy.stage = guard::RouteStage::kShadow;
      break;
    default:
      return;
  }
  if (!Take(route.name, policy.stage, policy.canary_share).ok()) return;
  deps_.metrics->operations().SteppedBack(route.name);
  deps_.changed(StageChange(route.name, route.policy.stage, policy.stage, "quality",
                            "reports of quality are worse than the artifact's evidence"));
  Changed();
}

void RouteTable::Changed() const {
  if (on_change_) on_change_();
}

}  // namespace kvbridge::server
