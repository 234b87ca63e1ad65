#include "server/status_page.h"

#include "absl/strings/str_cat.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);
constexpr char kHostile[] = "<script>alert('x')</script>\"&\xff";

// A server that just started and was told nothing.
Status Empty() {
  return {.now = kNow, .started = kNow, .state = "starting", .why = "starting", .host = "node-1"};
}

Status Busy() {
  Status status{.now = kNow,
                .started = kNow - absl::Hours(50),
                .state = "ready",
                .host = "node-1",
                .version = "0.1.0",
                .revision = "abc",
                .backend = "cpu",
                .latency = {.samples = 200, .p50_ms = 3.14, .p99_ms = 12345},
                .inflight_transfers = 3,
                .inflight_limit = 256,
                .queued = 1234,
                .queue_limit = 4096,
                .tls = true};
  status.routes = {{.name = "a-to-b",
                    .stage = "canary",
                    .canary_share = 0.25,
                    .circuit = "half_open",
                    .artifact = "0123456789ab",
                    .verdict = "PASS",
                    .source = "model-a",
                    .target = "model-b",
                    .resident_bytes = 3 << 20}};
  status.minute.span = absl::Seconds(60);
  status.minute.seconds[59] = {.applied = 90, .fell_back = 30, .tokens = 72000};
  status.minute.total = status.minute.seconds[59];
  status.minute.routes["a-to-b"] = status.minute.total;
  status.pools = {{.name = "transfers in flight", .used_bytes = 900, .limit_bytes = 1000},
                  {.name = "whole process", .used_bytes = 4096}};
  status.fallbacks = {{.time = kNow - absl::Seconds(75),
                       .route = "a-to-b",
                       .reason = "latency_budget",
                       .reason_class = "capacity",
                       .detail = "it would take 3 s",
                       .request_id = "r-17"}};
  status.changes = {{.time = kNow - absl::Hours(3),
                     .route = "a-to-b",
                     .what = "stage",
                     .from = "live",
                     .to = "canary",
                     .cause = "quality"}};
  status.certificates = {{.role = "server", .expires = kNow + absl::Hours(24 * 13)},
                         {.role = "client authority", .expires = kNow - absl::Hours(1)}};
  return status;
}

TEST(StatusHtmlTest, ShowsWhatAnOperatorAsks) {
  const std::string page = StatusHtml(Busy(), true);
  for (const char* text : {"120 in 1 min<",
                           "<title>ready · node-1 · kvbridged</title>",
                           "up 2 d 2 h",
                           "2.0 /s",
                           "1,200 /s",
                           "25 %",
                           "3.1 ms",
                           "p99 12.3 s of 200",
                           "of 256",
                           "1,234",
                           "canary 25 %",
                           "half open",
                           "0123456789ab",
                           "PASS",
                           "model-a → model-b",
                           "3.0 MiB",
                           "latency_budget",
                           "it would take 3 s",
                           "r-17",
                           "1 min 15 s ago",
                           "stage: live → canary",
                           "by quality",
                           "3 h ago",
                           "900 B of 1000 B",
                           "meter warn",
                           "13 days left",
                           "expired"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
}

TEST(StatusHtmlTest, AServerThatDidNothingYetHasAPageToo) {
  const std::string page = StatusHtml(Empty(), true);
  for (const char* text :
       {"starting", "None is configured", "None lately", "none yet", "speaks plaintext", "0 /s"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("Last changes")));
}

TEST(StatusHtmlTest, ARouteWithoutAnArtifactSaysWhy) {
  Status status = Empty();
  status.routes = {{.name = "a", .stage = "live", .circuit = "closed", .note = "no such folder"}};
  const std::string page = StatusHtml(status, true);
  EXPECT_THAT(page, HasSubstr("no such folder"));
  EXPECT_THAT(page, HasSubstr(">none</span>"));
}

TEST(StatusHtmlTest, HostileTextIsEscapedEverywhere) {
  const std::string h = kHostile;
  Status status{.now = kNow,
                .started = kNow,
                .state = h,
                .why = h,
                .host = h,
                .version = h,
                .revision = h,
                .backend = h,
                .tls = true};
  status.routes = {{h, h, 0, h, h, h, h, h, 0, h}};
  status.pools = {{.name = h, .used_bytes = 1, .limit_bytes = 2}};
  status.fallbacks = {{kNow, h, h, h, h, h}};
  status.changes = {{kNow, h, h, h, h, h, h}};
  status.certificates = {{.role = h, .expires = kNow}};
  const std::string page = StatusHtml(status, true);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("alert('")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
  EXPECT_THAT(page,
              HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;\xef\xbf\xbd"));
}

TEST(StatusHtmlTest, LoadsNothingAndRunsNothing) {
  const std::string page = StatusHtml(Busy(), true);
  for (const char* part : {"<script", " src=", "http://", "https://", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
}

TEST(StatusHtmlTest, RefreshesUnlessPaused) {
  EXPECT_THAT(StatusHtml(Empty(), true), HasSubstr("http-equiv=\"refresh\" content=\"5\""));
  EXPECT_THAT(StatusHtml(Empty(), false), Not(HasSubstr("http-equiv")));
}

TEST(StatusHtmlTest, RatesOfAServerThatJustStartedAreOfTheTimeItRan) {
  Status status = Busy();
  status.started = kNow - absl::Seconds(10);
  EXPECT_THAT(StatusHtml(status, true), HasSubstr("12 /s"));
}

TEST(StatusJsonTest, HoldsThePage) {
  const auto json = nlohmann::json::parse(StatusJson(Busy()));
  EXPECT_EQ(json["schema"], "kvbridge.status/v1");
  EXPECT_EQ(json["time"], "2023-11-14T22:13:20.000Z");
  EXPECT_EQ(json["routes"][0]["minute"]["fell_back"], 30);
  EXPECT_EQ(json["minute_seconds"], 60.0);
  EXPECT_EQ(json["fallbacks"][0]["reason"], "latency_budget");
  EXPECT_EQ(json["certificates"].size(), 2u);
  EXPECT_EQ(json["memory"][0]["limit_bytes"], 1000);
}

TEST(StatusJsonTest, WhatIsNotUtf8IsReplaced) {
  const Status status{.now = kNow, .started = kNow, .why = "\xff"};
  EXPECT_EQ(nlohmann::json::parse(StatusJson(status))["why"], "\xef\xbf\xbd");
}

}  // namespace
}  // namespace kvbridge::server
