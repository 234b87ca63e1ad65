// What operating a server counts: who was refused, what was reloaded, what routes did by
// themselves. A part of ServerMetrics, which scrapes it.
//
// Thread contract: every method may be called from any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace kvbridge::metrics {

class OperationMetrics {
 public:
  // `registry` is borrowed.
  explicit OperationMetrics(prometheus::Registry* registry);
  OperationMetrics(const OperationMetrics&) = delete;
  OperationMetrics& operator=(const OperationMetrics&) = delete;

  // Makes the series of a pair. Pairs of all methods are names that it was called with.
  void AddPair(const std::string& pair);

  void ConfigRead(absl::Time when);  // the first time
  void ConfigReloaded(absl::Time when);
  void ConfigRefused();
  void CertificateExpires(absl::string_view role, absl::Time when);  // "server", "ca"
  // "missing", "bad_token", "unknown_name", "no_grant", "wrong_tenant", "not_local", "handshake".
  void AuthFailed(absl::string_view reason);
  void CircuitIs(const std::string& pair,
                 absl::string_view state);  // "closed", "open", "half_open"
  void CircuitOpened(const std::string& pair);
  void QualityReported(const std::string& pair, bool within, double kl_nats);
  // One that was asked for, and did not come.
  void QualitySkipped(const std::string& pair);
  // A report that was not counted.
  void QualityRefused(const std::string& pair);
  void QualityThreshold(const std::string& pair, double nats);
  void SteppedBack(const std::string& pair);

 private:
  template <typename T>
  using Family = prometheus::Family<T>;

  Family<prometheus::Counter>& reloads_;
  Family<prometheus::Gauge>& certificates_;
  Family<prometheus::Counter>& auth_failures_;
  Family<prometheus::Gauge>& circuits_;
  Family<prometheus::Counter>& circuits_opened_;
  Family<prometheus::Counter>& quality_probes_;
  Family<prometheus::Histogram>& quality_kl_;
  Family<prometheus::Gauge>& quality_threshold_;
  Family<prometheus::Counter>& step_backs_;
  prometheus::Gauge& config_successful_;
  prometheus::Gauge& config_timestamp_;
};

}  // namespace kvbridge::metrics
