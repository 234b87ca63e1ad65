#include "proto/kvbridge/v1/event_json.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace kvbridge::wire {
namespace {

using nlohmann::json;

// "REASON_LATENCY_BUDGET" -> "latency_budget".
std::string Lower(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

std::string Utc(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", TimeOf(time), absl::UTCTimeZone());
}

json Decision(const v1::DecisionEvent& event) {
  json fields = {
      {"schema", event.schema()},
      {"event", "kvbridge_handoff"},
      {"time", Utc(event.time())},
      {"request_id", event.request_id()},
      {"pair", event.pair()},
      {"outcome", Lower(v1::Outcome_Name(event.outcome()), "OUTCOME_")},
      {"tokens", event.tokens()},
      {"covered_tokens", event.covered_tokens()},
      {"artifact", event.artifact()},
      {"total_ms", event.total_ms()},
      {"stage_ms", json::object()},
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

json Change(const v1::RouteEvent& event) {
  return {{"schema", event.schema()}, {"event", "kvbridge_route"}, {"time", Utc(event.time())},
          {"pair", event.pair()},     {"what", event.what()},      {"from", event.from()},
          {"to", event.to()},         {"cause", event.cause()},    {"detail", event.detail()}};
}

}  // namespace

absl::Time TimeOf(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

json EventJson(const v1::WatchEventsResponse& event) {
  return event.has_event() ? Decision(event.event()) : Change(event.route_event());
}

}  // namespace kvbridge::wire
