// What watches over one route: its circuit breaker, and the quality that callers report. Both only
// ever take the route back; forward is for an operator.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"

#include "core/artifact/manifest.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/engine/decision.h"
#include "core/guard/circuit.h"
#include "core/guard/quality_drift.h"
#include "core/metrics/operation_metrics.h"
#include "kvbridge/v1/config.pb.h"

namespace kvbridge::server {

// A route that changed, as events tell it.
struct RouteChange {
  std::string pair;
  std::string what;  // "stage", "circuit", "drill"
  std::string from;
  std::string to;
  std::string cause;  // "operator", "quality", "circuit", "reload"
  std::string detail;
};

// Whether the route is to blame for a decision, or to be praised.
guard::TryResult ResultOf(const engine::Decision& decision);

// Thread contract: every method may be called from any thread.
class RouteWatch {
 public:
  struct Deps {  // borrowed
    metrics::OperationMetrics* metrics = nullptr;
    const base::Clock* clock = nullptr;
    std::function<void(const RouteChange&)> changed;  // called without a lock
  };
  // `pair` is the route's name.
  RouteWatch(std::string pair, const v1::RouteConfig& config, Deps deps);

  void Configure(const v1::RouteConfig& config);
  // The artifact in use from now on, and the native tail of the route.
  void Judge(const artifact::Provenance& provenance, int64_t native_tail);

  bool Admit();
  void Ended(guard::TryResult result);
  void Override(guard::CircuitOverride override);
  guard::CircuitState circuit() const { return circuit_.state(); }

  // One report of quality. True: it is worse than the evidence by now.
  bool Report(double kl_nats, double disagreement);

 private:
  void TellCircuit(absl::string_view cause);
  guard::DriftBounds Bounds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginDrift() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string pair_;
  const Deps deps_;
  guard::Circuit circuit_;
  std::atomic<guard::CircuitState> told_{guard::CircuitState::kClosed};

  mutable base::Mutex mutex_;
  v1::QualityConfig quality_ ABSL_GUARDED_BY(mutex_);
  std::optional<double> evidence_kl_ ABSL_GUARDED_BY(mutex_);
  std::optional<double> evidence_disagreement_ ABSL_GUARDED_BY(mutex_);
  std::optional<guard::QualityDrift> drift_ ABSL_GUARDED_BY(mutex_);
};

// A transfer that was let through, until it ended. Move-free: shared by whoever may end it.
class RouteTry {
 public:
  explicit RouteTry(std::shared_ptr<RouteWatch> watch) : watch_(std::move(watch)) {}
  // One that ended without a decision says nothing about the route.
  ~RouteTry() { Ended(guard::TryResult::kNeutral); }
  RouteTry(const RouteTry&) = delete;
  RouteTry& operator=(const RouteTry&) = delete;

  // The first call counts.
  void Ended(guard::TryResult result) {
    if (!ended_.exchange(true)) watch_->Ended(result);
  }

 private:
  const std::shared_ptr<RouteWatch> watch_;
  std::atomic<bool> ended_{false};
};

}  // namespace kvbridge::server
