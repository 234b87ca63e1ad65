// Tells the world about every decision: metrics and one structured event.
#pragma once

#include "absl/strings/string_view.h"

#include "core/engine/decision.h"
#include "core/metrics/server_metrics.h"
#include "server/convert.h"
#include "server/event_log.h"
#include "server/expected_reports.h"

namespace kvbridge::server {

// Thread contract: every method may be called from any thread; none waits for a sink.
class DecisionRecorder {
 public:
  // All are borrowed.
  DecisionRecorder(metrics::ServerMetrics* metrics, EventLog* events, ExpectedReports* reports)
      : metrics_(*metrics), events_(*events), reports_(*reports) {}

  void Decided(const engine::Decision& decision, const DecisionContext& context);
  // A stream that broke the protocol before its header was understood.
  void Malformed(absl::Duration total);
  // A handler refused a call for who made it.
  void AuthFailed(absl::string_view reason) { metrics_.operations().AuthFailed(reason); }
  void RpcStarted(const metrics::RpcMethod& method) { metrics_.RpcStarted(method); }
  void RpcEnded(const metrics::RpcMethod& method, absl::string_view code, absl::Duration total) {
    metrics_.RpcHandled(method, code, total);
  }

 private:
  metrics::ServerMetrics& metrics_;
  EventLog& events_;
  ExpectedReports& reports_;
};

// "applied", "fallback_reprefill", "unsupported" or, when the caller went away, "cancelled".
absl::string_view OutcomeLabel(const engine::Decision& decision);

}  // namespace kvbridge::server
