// The configured routes: which pair of models, by which artifact, under which policy, and whether
// it can serve right now.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/engine/transfer.h"
#include "core/engine/transfer_engine.h"
#include "core/guard/reason.h"
#include "core/guard/route_policy.h"
#include "core/guard/transfer_spec.h"
#include "core/metrics/server_metrics.h"
#include "core/store/mapper_store.h"
#include "kvbridge/v1/config.pb.h"
#include "server/log.h"
#include "server/route_watch.h"

namespace kvbridge::server {

// A route at one moment.
struct RouteSnapshot {
  std::string name;
  guard::RoutePolicy policy;
  std::shared_ptr<RouteWatch> watch;
  store::PinnedMapper loaded;  // null: no artifact is in use
  absl::Status last_error;     // of the last load

  bool serving() const { return loaded != nullptr; }
  bool enabled() const { return policy.stage != guard::RouteStage::kOff; }
  bool proven() const {
    return serving() && loaded->provenance.verdict() == artifact::Verdict::kPass;
  }
  bool past_shadow() const {
    return policy.stage == guard::RouteStage::kCanary || policy.stage == guard::RouteStage::kLive;
  }
  // Whether it would apply transfers, were its artifact proven or allowed without proof.
  bool lacks_evidence() const {
    return serving() && past_shadow() && !proven() && !policy.allow_unproven;
  }
  // What is to be known about it although it serves; empty when nothing is.
  std::string Caveats() const;
  // Only when serving.
  engine::ArtifactPin pin() const { return {loaded->resident, proven()}; }
  // Why it does not serve, for callers: it names the route, never a path.
  guard::Refusal WhyNot() const;
};

// Thread contract: every method may be called from any thread. Load blocks its caller only; loads
// of one route are serialised.
class RouteTable {
 public:
  // Of a route that lacks evidence.
  static constexpr absl::string_view kNeverApplies = "every transfer will fall back: unproven_pair";

  struct Deps {  // borrowed
    store::MapperStore* store = nullptr;
    engine::TransferEngine* engine = nullptr;
    metrics::ServerMetrics* metrics = nullptr;
    Log* log = nullptr;
    const base::Clock* clock = nullptr;
    // Called, without a lock, when a stage, a circuit or a drill changed.
    std::function<void(const RouteChange&)> changed;
  };

  RouteTable(const v1::Config& config, Deps deps);

  // Called, without a lock, after a route came, went, began or ceased to serve, or changed its
  // stage.
  void OnChange(std::function<void()> callback) { on_change_ = std::move(callback); }

  // Takes the routes of another configuration, all at once. A stage that was changed at run time
  // stays, unless the configured one changed. Answers the routes whose artifact is to be loaded;
  // until then they serve what they served.
  std::vector<std::string> Apply(const v1::Config& config);

  std::vector<std::string> names() const;
  // NOT_FOUND names the route.
  absl::StatusOr<RouteSnapshot> Get(absl::string_view name) const;
  std::vector<RouteSnapshot> All() const;

  // What a transfer will run: its route by name, or by both models' ids and revisions.
  struct Choice {
    std::string route;  // empty: none
    guard::RoutePolicy policy;
    std::variant<engine::ArtifactPin, guard::Refusal> pin;
    // Set with an artifact: tells the route's circuit how the transfer ended.
    std::shared_ptr<RouteTry> attempt;
  };
  Choice Choose(const guard::TransferSpec& spec) const;
  // Whether such a transfer might be applied: its route serves the pair, past shadow, with the
  // artifact that it asks for, if any. Tries nothing.
  bool MayApply(const guard::TransferSpec& spec) const;

  // Loads beside what serves, then switches; a failure changes nothing but last_error. An empty
  // `path` is the configured one. Transfers in flight keep the artifact they began with.
  absl::Status Load(absl::string_view name, absl::string_view path);
  absl::Status Unload(absl::string_view name);

  // FAILED_PRECONDITION for a stage past shadow when the artifact has no passing evidence and the
  // route does not allow that. Answers the stage before.
  absl::StatusOr<guard::RouteStage> SetStage(absl::string_view name, guard::RouteStage stage,
                                             double canary_share);
  // What an operator says to the route's circuit breaker.
  absl::Status OverrideCircuit(absl::string_view name, guard::CircuitOverride override);

  // One report of quality by a caller who prefilled as well. A route that has become worse than its
  // evidence goes back one stage, from live to canary (half of all requests) or from canary to
  // shadow. FAILED_PRECONDITION when another artifact is in use by now.
  absl::Status ReportQuality(absl::string_view name, absl::string_view artifact_digest,
                             double kl_nats, double disagreement);

 private:
  struct Route {
    std::shared_ptr<const v1::RouteConfig> config;
    guard::RoutePolicy policy;
    std::shared_ptr<RouteWatch> watch;
  };

  Route MakeRoute(const v1::RouteConfig& config);
  void Reconfigure(const v1::RouteConfig& config, Route* route) const;
  absl::StatusOr<Route> Find(absl::string_view name) const;
  Choice Try(const RouteSnapshot& route) const;
  void StepBack(const RouteSnapshot& route);
  // Nothing else of its policy, which a reload may have replaced. NOT_FOUND when it went meanwhile.
  absl::Status Take(const std::string& name, guard::RouteStage stage, double canary_share);
  RouteSnapshot Snapshot(const Route& route, const std::vector<store::PairStatus>& pairs) const;
  // Warns and measures. Answers what changed, for `changed`; nothing when neither is on.
  std::optional<RouteChange> TellDrill(const std::string& pair, const guard::Drill& before,
                                       const guard::Drill& now) const;
  void Report(const Route& route, const store::LoadedMapper& loaded) const;
  void Changed() const;

  const Deps deps_;
  std::function<void()> on_change_;
  mutable base::Mutex mutex_;
  std::map<std::string, Route, std::less<>> routes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::server
