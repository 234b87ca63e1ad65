#include "server/decision_recorder.h"

#include <string>
#include <utility>

#include "core/metrics/metric_names.h"
#include "server/route_watch.h"

namespace kvbridge::server {

absl::string_view OutcomeLabel(const engine::Decision& decision) {
  return decision.reason == guard::Reason::kCancelled ? "cancelled" : Name(decision.outcome);
}

void DecisionRecorder::Decided(const engine::Decision& decision, const DecisionContext& context) {
  const bool cancelled = decision.reason == guard::Reason::kCancelled;
  if (context.attempt != nullptr) context.attempt->Ended(ResultOf(decision));
  if (decision.applied() && decision.shadow_selected) {
    const auto forgotten = reports_.Expect(context.request_id, context.pair);
    if (forgotten.has_value()) metrics_.operations().QualitySkipped(metrics_.Pair(*forgotten));
  }
  metrics::TransferSample sample{.pair = context.pair,
                                 .outcome = std::string(OutcomeLabel(decision)),
                                 .duration = context.total,
                                 .tokens = context.tokens,
                                 .covered_tokens = decision.covered_tokens,
                                 .max_abs = decision.max_abs};
  if (!decision.applied() && !cancelled) {
    sample.reason = std::string(Name(decision.reason));
    sample.reason_class = std::string(Name(guard::ClassOf(decision.reason)));
  }
  for (size_t i = 0; i < engine::kStageCount; ++i) {
    if (decision.stages[i] == absl::ZeroDuration()) continue;
    sample.stages.emplace_back(Name(static_cast<engine::Stage>(i)), decision.stages[i]);
  }
  metrics_.TransferEnded(sample);
  metrics_.PayloadMoved("in", context.source_transport, decision.bytes_in);
  metrics_.PayloadMoved("out", context.target_transport, decision.bytes_out);
  if (cancelled) return;
  v1::WatchEventsResponse event;
  *event.mutable_event() = ToEvent(decision, context);
  events_.Offer(std::move(event));
}

void DecisionRecorder::Malformed(absl::Duration total) {
  metrics_.TransferEnded(
      {.pair = std::string(metrics::kOtherPair), .outcome = "error", .duration = total});
}

}  // namespace kvbridge::server
