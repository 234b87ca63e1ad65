#include "core/metrics/operation_metrics.h"

#include "core/metrics/families.h"

namespace kvbridge::metrics {
namespace {

constexpr const char* kAuthReasons[] = {"missing",      "bad_token", "unknown_name", "no_grant",
                                        "wrong_tenant", "not_local", "handshake"};
constexpr const char* kCircuitStates[] = {"closed", "open", "half_open"};
const prometheus::Histogram::BucketBoundaries kKlBuckets = {.001, .005, .01, .02, .05, .1, .15,
                                                            .2,   .3,   .5,  1,   2,   5};

double UnixSeconds(absl::Time when) { return absl::ToDoubleSeconds(when - absl::UnixEpoch()); }

}  // namespace

OperationMetrics::OperationMetrics(prometheus::Registry* registry)
    : reloads_(AddCounter(kConfigReloads, *registry)),
      certificates_(AddGauge(kCertificateExpiry, *registry)),
      auth_failures_(AddCounter(kAuthFailures, *registry)),
      config_successful_(AddGauge(kConfigReloadSuccessful, *registry).Add({})),
      config_timestamp_(AddGauge(kConfigReloadTimestamp, *registry).Add({})),
      circuits_(AddGauge(kCircuitState, *registry)),
      circuits_opened_(AddCounter(kCircuitOpened, *registry)),
      quality_probes_(AddCounter(kQualityProbes, *registry)),
      quality_kl_(AddHistogram(kQualityKl, *registry)),
      quality_threshold_(AddGauge(kQualityThreshold, *registry)),
      step_backs_(AddCounter(kStepBacks, *registry)) {
  for (const char* result : {"ok", "error"}) reloads_.Add({{"result", result}});
  for (const char* reason : kAuthReasons) auth_failures_.Add({{"reason", reason}});
}

void OperationMetrics::AddPair(const std::string& pair) {
  base::MutexLock lock(&mutex_);
  pairs_.insert(pair);
  Circuit(pair, kCircuitStates[0]);
  circuits_opened_.Add({{"pair", pair}});
  for (const char* result : {"pass", "reject", "error", "skipped"}) {
    quality_probes_.Add({{"pair", pair}, {"result", result}});
  }
  quality_kl_.Add({{"pair", pair}}, kKlBuckets);
  quality_threshold_.Add({{"pair", pair}});
  step_backs_.Add({{"pair", pair}});
}

void OperationMetrics::RemovePair(const std::string& pair) {
  base::MutexLock lock(&mutex_);
  pairs_.erase(pair);
  const auto remove = [&pair](auto&... families) { (families.Remove(pair), ...); };
  remove(circuits_, circuits_opened_, quality_probes_, quality_kl_, quality_threshold_,
         step_backs_);
}

std::string OperationMetrics::Counted(const std::string& pair) const {
  return pairs_.count(pair) > 0 ? pair : std::string(kOtherPair);
}

void OperationMetrics::ConfigRead(absl::Time when) {
  config_successful_.Set(1);
  config_timestamp_.Set(UnixSeconds(when));
}

void OperationMetrics::ConfigReloaded(absl::Time when) {
  ConfigRead(when);
  reloads_.Add({{"result", "ok"}}).Increment();
}

void OperationMetrics::ConfigRefused() {
  config_successful_.Set(0);
  reloads_.Add({{"result", "error"}}).Increment();
}

void OperationMetrics::CertificateExpires(absl::string_view role, absl::Time when) {
  certificates_.Add({{"role", std::string(role)}}).Set(UnixSeconds(when));
}

void OperationMetrics::AuthFailed(absl::string_view reason) {
  auth_failures_.Add({{"reason", std::string(reason)}}).Increment();
}

void OperationMetrics::CircuitIs(const std::string& pair, absl::string_view state) {
  base::MutexLock lock(&mutex_);
  if (pairs_.count(pair) > 0) Circuit(pair, state);
}

void OperationMetrics::Circuit(const std::string& pair, absl::string_view state) {
  for (const char* each : kCircuitStates) {
    circuits_.Add({{"pair", pair}, {"state", each}}).Set(state == each ? 1 : 0);
  }
}

void OperationMetrics::CircuitOpened(const std::string& pair) {
  base::MutexLock lock(&mutex_);
  circuits_opened_.Add({{"pair", Counted(pair)}}).Increment();
}

void OperationMetrics::QualityReported(const std::string& pair, bool within, double kl_nats) {
  base::MutexLock lock(&mutex_);
  const std::string counted = Counted(pair);
  quality_probes_.Add({{"pair", counted}, {"result", within ? "pass" : "reject"}}).Increment();
  quality_kl_.Add({{"pair", counted}}, kKlBuckets).Observe(kl_nats);
}

void OperationMetrics::QualitySkipped(const std::string& pair) {
  base::MutexLock lock(&mutex_);
  quality_probes_.Add({{"pair", Counted(pair)}, {"result", "skipped"}}).Increment();
}

void OperationMetrics::QualityRefused(const std::string& pair) {
  base::MutexLock lock(&mutex_);
  quality_probes_.Add({{"pair", Counted(pair)}, {"result", "error"}}).Increment();
}

void OperationMetrics::QualityThreshold(const std::string& pair, double nats) {
  base::MutexLock lock(&mutex_);
  if (pairs_.count(pair) > 0) quality_threshold_.Add({{"pair", pair}}).Set(nats);
}

void OperationMetrics::SteppedBack(const std::string& pair) {
  base::MutexLock lock(&mutex_);
  step_backs_.Add({{"pair", Counted(pair)}}).Increment();
}

}  // namespace kvbridge::metrics
