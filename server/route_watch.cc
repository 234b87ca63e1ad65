#include "server/route_watch.h"

#include <algorithm>
#include <utility>

#include "server/convert.h"

namespace kvbridge::server {
namespace {

using guard::CircuitState;
using guard::Reason;
using guard::TryResult;

guard::CircuitPolicy ToPolicy(const v1::CircuitConfig& config) {
  return {.enabled = config.enabled(),
          .window = ToDuration(config.window()),
          .min_transfers = config.min_transfers(),
          .max_bad_share = config.max_bad_share(),
          .open_for = ToDuration(config.open_for()),
          .probes = config.probes()};
}

// Evidence of a pair that is all but exact leaves no room for the noise of single prompts.
constexpr double kLeastKl = 1e-3;
constexpr double kLeastDisagreement = 1e-3;

// Mean top-1 agreement of the judged variant, where the evidence was measured by `kvbridge
// validate`.
std::optional<double> Agreement(const artifact::Evidence& evidence, int64_t native_tail) {
  const std::string variant =
      native_tail <= 1 ? "mapped" : "mapped.tail" + std::to_string(native_tail);
  const auto& details = evidence.details;
  if (!details.contains("all") || !details["all"].contains("variants")) return std::nullopt;
  const auto& variants = details["all"]["variants"];
  if (!variants.contains(variant) || !variants[variant].contains("top1")) return std::nullopt;
  const auto& top1 = variants[variant]["top1"];
  if (!top1.contains("value") || !top1["value"].is_number()) return std::nullopt;
  return top1["value"].get<double>();
}

}  // namespace

TryResult ResultOf(const engine::Decision& decision) {
  if (decision.drill) return TryResult::kNeutral;
  switch (decision.reason) {
    case Reason::kNone:
      return TryResult::kGood;
    case Reason::kQualityProbe:
    case Reason::kNonFinite:
    case Reason::kMagnitudeBound:
    case Reason::kDeviceOom:
    case Reason::kDeviceError:
    case Reason::kInternal:
      return TryResult::kBad;
    case Reason::kLatencyBudget:
      // One that was refused by its estimate cost nobody anything.
      return decision.bytes_in > 0 ? TryResult::kBad : TryResult::kNeutral;
    default:
      return TryResult::kNeutral;
  }
}

RouteWatch::RouteWatch(std::string pair, const v1::RouteConfig& config, Deps deps)
    : pair_(std::move(pair)), deps_(std::move(deps)), circuit_(ToPolicy(config.circuit())) {
  Configure(config);
}

void RouteWatch::Configure(const v1::RouteConfig& config) {
  circuit_.SetPolicy(ToPolicy(config.circuit()));
  TellCircuit("reload");
  base::MutexLock lock(&mutex_);
  quality_ = config.quality();
  BeginDrift();
}

void RouteWatch::Judge(const artifact::Provenance& provenance, int64_t native_tail) {
  base::MutexLock lock(&mutex_);
  evidence_kl_ = artifact::QualityAt(provenance, native_tail).kl_nats;
  evidence_disagreement_.reset();
  if (provenance.evidence.has_value()) {
    const auto agreement = Agreement(*provenance.evidence, native_tail);
    if (agreement.has_value()) evidence_disagreement_ = 1 - *agreement;
  }
  drift_.reset();
  BeginDrift();
}

guard::DriftBounds RouteWatch::Bounds() const {
  guard::DriftBounds bounds{.false_alarm_reports = double(quality_.false_alarm_reports())};
  if (!quality_.enabled()) return bounds;
  if (evidence_kl_.has_value()) {
    bounds.kl_nats = quality_.margin() * std::max(*evidence_kl_, kLeastKl);
  }
  if (evidence_disagreement_.has_value()) {
    bounds.disagreement = quality_.margin() * std::max(*evidence_disagreement_, kLeastDisagreement);
  }
  return bounds;
}

void RouteWatch::BeginDrift() {
  const guard::DriftBounds bounds = Bounds();
  if (!drift_.has_value() || drift_->bounds() != bounds) drift_.emplace(bounds);
  deps_.metrics->QualityThreshold(pair_, bounds.kl_nats.value_or(0));
}

bool RouteWatch::Admit() {
  const bool admitted = circuit_.Admit(deps_.clock->Now());
  TellCircuit("circuit");
  return admitted;
}

void RouteWatch::Ended(TryResult result) {
  circuit_.Ended(result, deps_.clock->Now());
  TellCircuit("circuit");
}

void RouteWatch::Override(guard::CircuitOverride override) {
  circuit_.Override(override);
  TellCircuit("operator");
}

void RouteWatch::TellCircuit(absl::string_view cause) {
  const CircuitState now = circuit_.state();
  const CircuitState before = told_.exchange(now);
  if (now == before) return;
  deps_.metrics->CircuitIs(pair_, Name(now));
  if (now == CircuitState::kOpen) deps_.metrics->CircuitOpened(pair_);
  deps_.changed({.pair = pair_,
                 .what = "circuit",
                 .from = std::string(Name(before)),
                 .to = std::string(Name(now)),
                 .cause = std::string(cause),
                 .detail = now == CircuitState::kOpen && cause == "circuit"
                               ? "too large a share of its transfers failed"
                               : ""});
}

bool RouteWatch::Report(double kl_nats, double disagreement) {
  base::MutexLock lock(&mutex_);
  const auto& bound = drift_->bounds().kl_nats;
  deps_.metrics->QualityReported(pair_, !bound.has_value() || kl_nats <= *bound, kl_nats);
  return drift_->Add(kl_nats, disagreement);
}

}  // namespace kvbridge::server
