// What operating a server counts: who was refused, what was reloaded, what routes did by
// themselves. A part of ServerMetrics, which scrapes it.
//
// Thread contract: every method may be called from any thread.
#pragma once

#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "core/base/mutex.h"
#include "core/metrics/pair_family.h"

namespace kvbridge::metrics {

class OperationMetrics {
 public:
  // `registry` is borrowed.
  explicit OperationMetrics(prometheus::Registry* registry);
  OperationMetrics(const OperationMetrics&) = delete;
  OperationMetrics& operator=(const OperationMetrics&) = delete;

  // Makes the series of a pair, and takes them away. Of others, counts are kOtherPair's, and states
  // are nobody's.
  void AddPair(const std::string& pair);
  void RemovePair(const std::string& pair);

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

  std::string Counted(const std::string& pair) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Circuit(const std::string& pair, absl::string_view state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Family<prometheus::Counter>& reloads_;
  Family<prometheus::Gauge>& certificates_;
  Family<prometheus::Counter>& auth_failures_;
  prometheus::Gauge& config_successful_;
  prometheus::Gauge& config_timestamp_;

  base::Mutex mutex_;
  std::set<std::string> pairs_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> circuits_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Counter> circuits_opened_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Counter> quality_probes_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Histogram> quality_kl_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Gauge> quality_threshold_ ABSL_GUARDED_BY(mutex_);
  PairFamily<prometheus::Counter> step_backs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::metrics
