#include "proto/kvbridge/v1/event_json.h"

#include "gtest/gtest.h"

namespace kvbridge::wire {
namespace {

v1::WatchEventsResponse FellBack() {
  v1::WatchEventsResponse response;
  v1::DecisionEvent& event = *response.mutable_event();
  event.set_schema("kvbridge.event/v1");
  event.mutable_time()->set_seconds(1700000000);
  event.mutable_time()->set_nanos(123456789);
  event.set_request_id("r1");
  event.set_outcome(v1::OUTCOME_FALLBACK_REPREFILL);
  event.set_reason(v1::REASON_LATENCY_BUDGET);
  event.set_reason_class(v1::REASON_CLASS_CAPACITY);
  (*event.mutable_stage_ms())["map"] = 1.5;
  return response;
}

TEST(EventJsonTest, FieldsUseTheWireWords) {
  const nlohmann::json fields = EventJson(FellBack());
  EXPECT_EQ(fields["event"], "kvbridge_handoff");
  EXPECT_EQ(fields["time"], "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(fields["outcome"], "fallback_reprefill");
  EXPECT_EQ(fields["reason"], "latency_budget");
  EXPECT_EQ(fields["class"], "capacity");
  EXPECT_EQ(fields["stage_ms"]["map"], 1.5);
  EXPECT_FALSE(fields.contains("trace_id"));
}

TEST(EventJsonTest, AnAppliedTransferHasNoReason) {
  v1::WatchEventsResponse applied = FellBack();
  applied.mutable_event()->set_outcome(v1::OUTCOME_APPLIED);
  applied.mutable_event()->clear_reason();
  for (const char* field : {"reason", "class", "detail"}) {
    EXPECT_FALSE(EventJson(applied).contains(field)) << field;
  }
}

TEST(EventJsonTest, AChangeOfARouteIsAnEventOfItsOwn) {
  v1::WatchEventsResponse response;
  response.mutable_route_event()->set_pair("a");
  response.mutable_route_event()->set_what("stage");
  response.mutable_route_event()->set_to("shadow");
  const nlohmann::json fields = EventJson(response);
  EXPECT_EQ(fields["event"], "kvbridge_route");
  EXPECT_EQ(fields["to"], "shadow");
  EXPECT_EQ(fields["time"], "1970-01-01T00:00:00.000Z");
}

}  // namespace
}  // namespace kvbridge::wire
