#include "server/event_log.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace kvbridge::server {
namespace {

// "REASON_LATENCY_BUDGET" -> "latency_budget".
std::string Lower(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

}  // namespace

nlohmann::json EventFields(const v1::DecisionEvent& event) {
  nlohmann::json fields = {
      {"schema", event.schema()},
      {"event", "kvbridge_handoff"},
      {"request_id", event.request_id()},
      {"pair", event.pair()},
      {"outcome", Lower(v1::Outcome_Name(event.outcome()), "OUTCOME_")},
      {"tokens", event.tokens()},
      {"covered_tokens", event.covered_tokens()},
      {"artifact", event.artifact()},
      {"total_ms", event.total_ms()},
      {"stage_ms", nlohmann::json::object()},
  };
  for (const auto& [stage, ms] : event.stage_ms()) fields["stage_ms"][stage] = ms;
  if (event.reason() != v1::REASON_UNSPECIFIED) {
    fields["reason"] = Lower(v1::Reason_Name(event.reason()), "REASON_");
    fields["class"] = Lower(v1::ReasonClass_Name(event.reason_class()), "REASON_CLASS_");
    fields["detail"] = event.detail();
  }
  if (!event.trace_id().empty()) fields["trace_id"] = event.trace_id();
  if (!event.span_id().empty()) fields["span_id"] = event.span_id();
  return fields;
}

nlohmann::json EventFields(const v1::RouteEvent& event) {
  return {{"schema", event.schema()}, {"event", "kvbridge_route"}, {"pair", event.pair()},
          {"what", event.what()},     {"from", event.from()},      {"to", event.to()},
          {"cause", event.cause()},   {"detail", event.detail()}};
}

EventLog::EventLog(Sink sink, size_t capacity)
    : sink_(std::move(sink)), capacity_(capacity), thread_([this] { Main(); }) {}

void EventLog::Offer(v1::WatchEventsResponse event) {
  base::MutexLock lock(&mutex_);
  if (stopping_ || queue_.size() >= capacity_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  queue_.push_back(std::move(event));
  wake_.Signal();
}

void EventLog::Stop() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  base::MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void EventLog::Main() {
  for (;;) {
    std::deque<v1::WatchEventsResponse> batch;
    {
      base::MutexLock lock(&mutex_);
      while (!stopping_ && queue_.empty()) wake_.Wait(&mutex_);
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    for (const auto& event : batch) sink_(event);
  }
}

}  // namespace kvbridge::server
