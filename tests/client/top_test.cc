#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/screen.h"
#include "client/cli/server_load.h"
#include "client/cli/table.h"
#include "client/cli/top_view.h"
#include "client/cli/top_window.h"

namespace kvbridge::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kStart = absl::FromUnixSeconds(1700000000);

v1::DecisionEvent Applied(const std::string& route, double ms, int64_t tokens = 100) {
  v1::DecisionEvent event;
  event.set_pair(route);
  event.set_outcome(v1::OUTCOME_APPLIED);
  event.set_total_ms(ms);
  event.set_covered_tokens(tokens);
  return event;
}

v1::DecisionEvent FellBack(const std::string& route, v1::Reason reason) {
  v1::DecisionEvent event;
  event.set_pair(route);
  event.set_outcome(v1::OUTCOME_FALLBACK_REPREFILL);
  event.set_reason(reason);
  event.set_total_ms(1e6);  // says nothing about how long a transfer takes
  return event;
}

TEST(TopWindowTest, CountsByRouteAndInAll) {
  TopWindow window(kStart);
  for (int i = 1; i <= 100; ++i) window.Add(kStart + absl::Seconds(1), Applied("a", i));
  window.Add(kStart + absl::Seconds(2), FellBack("a", v1::REASON_OVERLOAD));
  window.Add(kStart + absl::Seconds(3), FellBack("a", v1::REASON_LATENCY_BUDGET));
  window.Add(kStart + absl::Seconds(4), Applied("b", 7));
  const TopWindow::Reading reading = window.Read(kStart + absl::Seconds(10));
  const Decisions& a = reading.routes.at("a");
  EXPECT_EQ(reading.span, absl::Seconds(10));
  EXPECT_EQ(a.applied, 100);
  EXPECT_EQ(a.fell_back, 2);
  EXPECT_EQ(a.tokens, 10000);
  EXPECT_EQ(a.p50_ms, 50);
  EXPECT_EQ(a.p99_ms, 99);
  EXPECT_EQ(a.last_reason, "latency_budget");
  EXPECT_DOUBLE_EQ(reading.PerSecond(a.all()), 10.2);
  EXPECT_EQ(reading.total.applied, 101);
  EXPECT_DOUBLE_EQ(*reading.total.fallback_share(), 2.0 / 103);
}

TEST(TopWindowTest, WhatIsOlderThanAMinuteIsForgotten) {
  TopWindow window(kStart);
  window.Add(kStart, Applied("a", 1));
  window.Add(kStart + absl::Seconds(30), Applied("a", 1));
  EXPECT_EQ(window.Read(kStart + absl::Seconds(60)).total.applied, 2);
  const TopWindow::Reading later = window.Read(kStart + absl::Seconds(61));
  EXPECT_EQ(later.total.applied, 1);
  EXPECT_EQ(later.span, absl::Seconds(60));
  EXPECT_TRUE(window.Read(kStart + absl::Hours(1)).routes.empty());
}

TEST(TopWindowTest, MoreThanItKeepsMakesItShorter) {
  TopWindow window(kStart);
  const auto at = [](size_t i) { return kStart + absl::Milliseconds(0.5) * i; };
  for (size_t i = 0; i < TopWindow::kMost + 2000; ++i) window.Add(at(i), Applied("a", 1));
  const TopWindow::Reading reading = window.Read(at(TopWindow::kMost + 2000));
  EXPECT_EQ(reading.total.applied, int64_t{TopWindow::kMost});
  EXPECT_NEAR(reading.PerSecond(reading.total.all()), 2000, 1);
}

TEST(TopWindowTest, WithoutEventsNothingIsKnown) {
  const Decisions total = TopWindow(kStart).Read(kStart).total;
  EXPECT_FALSE(total.fallback_share().has_value());
  EXPECT_FALSE(total.p50_ms.has_value());
  EXPECT_EQ(total.last_reason, "");
}

TopFrame Frame() {
  TopFrame frame{.time = kStart};
  frame.health.set_state(v1::SERVER_STATE_READY);
  frame.health.set_version("0.1.0");
  for (const char* name : {"a", "idle"}) {
    v1::RouteHealth& route = *frame.health.add_routes();
    route.set_route(name);
    route.set_stage(v1::ROUTE_STAGE_LIVE);
    route.set_circuit(v1::CIRCUIT_STATE_CLOSED);
    route.set_serving(true);
  }
  TopWindow window(kStart);
  window.Add(kStart, Applied("a", 3.14159, 200));
  window.Add(kStart, FellBack("a", v1::REASON_OVERLOAD));
  frame.reading = window.Read(kStart + absl::Seconds(10));
  return frame;
}

TEST(TopViewTest, ATableForPeople) {
  TopFrame frame = Frame();
  frame.load = {.inflight_transfers = 3, .queue_depth = 7, .queue_limit = 4096};
  const std::string text = TopText(frame, false);
  EXPECT_THAT(text, HasSubstr("kvbridged 0.1.0  ready  "));
  EXPECT_THAT(text, HasSubstr("  last 10 s\nin flight 3  queue 7 of 4096\n\nROUTE"));
  EXPECT_THAT(text, HasSubstr("ROUTE  STAGE  CIRCUIT  TRANSFERS/S  TOKENS/S  FELL BACK %  P50 MS  "
                              "P99 MS  LAST REASON  DETAIL\n"
                              "a      live   closed           0.2        20         50.0     3.1   "
                              "  3.1  overload     -\n"
                              "idle   live   closed           0.0         0            -       -   "
                              "    -  -            -\n"
                              "all    -      -                0.2        20         50.0     3.1   "
                              "  3.1  overload     -\n"));
  frame.load.reset();
  EXPECT_THAT(TopText(frame, false), Not(HasSubstr("in flight")));
}

TEST(TopViewTest, ADocumentForProgramsSaysNullForWhatIsNotKnown) {
  const base::Json document = TopDocument(Frame());
  EXPECT_EQ(document["schema"], "kvbridge.top/v1");
  EXPECT_EQ(document["state"], "ready");
  EXPECT_EQ(document["window_seconds"], 10.0);
  EXPECT_TRUE(document["queue_depth"].is_null());
  EXPECT_EQ(document["routes"][0]["route"], "a");
  EXPECT_EQ(document["routes"][0]["fallback_share"], 0.5);
  EXPECT_EQ(document["routes"][0]["last_reason"], "overload");
  EXPECT_TRUE(document["routes"][1]["p50_ms"].is_null());
  EXPECT_EQ(document["total"]["applied"], 1);
}

TEST(TopViewTest, WhatNamedNoRouteHasALineOfItsOwn) {
  TopFrame frame = Frame();
  EXPECT_THAT(TopText(frame, false), Not(HasSubstr("_other")));
  frame.reading.routes["_other"].fell_back = 1;
  EXPECT_THAT(TopText(frame, false), HasSubstr("_other"));
}

TEST(TopViewTest, TextFromAServerCannotDriveTheTerminal) {
  TopFrame frame = Frame();
  frame.health.mutable_routes(0)->set_route("a\x1b[2Jb");
  frame.health.mutable_routes(0)->set_detail("\x1b]0;title\x07");
  EXPECT_THAT(TopText(frame, false), Not(HasSubstr("\x1b")));
}

TEST(ClipTest, LinesAreCutAndCodesTakeNoRoom) {
  EXPECT_EQ(Clip("abcdef\n\nxyz\nlast", 3, 4), "abcd\n\nxyz");
  EXPECT_EQ(Clip("\x1b[1mabcdef\x1b[0m", 1, 3), "\x1b[1mabc\x1b[0m");
  EXPECT_EQ(Clip("größer", 1, 3), "grö");
  EXPECT_EQ(Clip("", 5, 5), "");
}

TEST(ServerLoadTest, IsReadFromMetrics) {
  const auto load = ParseLoad(
      "# HELP kvbridge_queue_depth Tiles\n# TYPE kvbridge_queue_depth gauge\nkvbridge_queue_depth "
      "12\n"
      "kvbridge_queue_limit 4096\nkvbridge_inflight_transfers 3\n");
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->queue_depth, 12);
  EXPECT_EQ(load->queue_limit, 4096);
  EXPECT_EQ(load->inflight_transfers, 3);
}

TEST(ServerLoadTest, WhatIsNoKvbridgedIsNamed) {
  const auto load = ParseLoad("up 1\n");
  EXPECT_EQ(load.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(load.status().message()), HasSubstr("kvbridge_inflight_transfers"));
  EXPECT_EQ(FetchLoad("nowhere").status().code(), absl::StatusCode::kInvalidArgument);
  const auto refused = FetchLoad("127.0.0.1:1");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--admin: 127.0.0.1:1: "));
}

}  // namespace
}  // namespace kvbridge::cli
