#include "server/admin_http.h"

#include "absl/strings/str_cat.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/http_client.h"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class AdminHttpTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto http =
        AdminHttp::Start("127.0.0.1", 0,
                         {.metrics = [] { return "a_metric 1\n"; },
                          .live = [] { return live_; },
                          .ready = [] { return ready_; },
                          .version = [] { return "{\"version\":\"0.1.0\"}"; },
                          .config = [] { return "{}"; },
                          .artifacts = [] { return "{\"routes\": []}"; },
                          .events = [] { return "{\"events\": []}"; },
                          .status =
                              [](const StatusView& view) {
                                return absl::StrCat("json=", view.json, " refresh=", view.refresh);
                              }});
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
  }
  static void TearDownTestSuite() { http_.reset(); }

  std::string Ask(const std::string& request_line, const std::string& host = "127.0.0.1:9464") {
    HttpClient client(http_->port());
    client.Say(absl::StrCat(request_line, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
    return client.Read();
  }

  static inline Verdict live_, ready_;
  static inline std::unique_ptr<AdminHttp> http_;
};

TEST_F(AdminHttpTest, ServesMetricsInPrometheusFormat) {
  const std::string answer = Ask("GET /metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\na_metric 1\n"));
}

TEST_F(AdminHttpTest, NotReadyIs503AndSaysWhy) {
  EXPECT_THAT(Ask("GET /readyz"), StartsWith("HTTP/1.1 200 "));
  ready_ = {false, "draining"};
  const std::string answer = Ask("GET /readyz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\ndraining\n"));
  EXPECT_THAT(Ask("GET /livez"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, ServesVersionAndConfigurationAsJson) {
  EXPECT_THAT(Ask("GET /version"), HasSubstr("\r\n\r\n{\"version\":\"0.1.0\"}"));
  EXPECT_THAT(Ask("GET /configz"), HasSubstr("application/json"));
  EXPECT_THAT(Ask("GET /artifactz"), HasSubstr("routes"));
  EXPECT_THAT(Ask("GET /eventz"), HasSubstr("events"));
}

TEST_F(AdminHttpTest, TheStatusPageMayDoNothingButBeRead) {
  const std::string page = Ask("GET /statusz");
  EXPECT_THAT(page, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page, HasSubstr("Content-Security-Policy: default-src 'none';"));
  EXPECT_THAT(page, HasSubstr("\r\n\r\njson=0 refresh=1"));
  EXPECT_THAT(Ask("GET /statusz?refresh=off&x=1"), HasSubstr("json=0 refresh=0"));
  const std::string json = Ask("GET /statusz?format=json");
  EXPECT_THAT(json, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(json, HasSubstr("json=1"));
}

// A page of somebody's, whose name leads here by now, would read these in an operator's browser.
TEST_F(AdminHttpTest, LocalPagesAreNotServedAtAName) {
  for (const char* page : {"/configz", "/artifactz", "/eventz", "/statusz"}) {
    for (const char* host : {"evil.example", "evil.example:9464", "127.0.0.1.evil.example", "1"}) {
      EXPECT_THAT(Ask(absl::StrCat("GET ", page), host), StartsWith("HTTP/1.1 403 ")) << host;
    }
    for (const char* host :
         {"localhost", "LocalHost:8080", "127.0.0.1", "10.0.0.1:1", "[::1]:9464", ""}) {
      EXPECT_THAT(Ask(absl::StrCat("GET ", page), host), StartsWith("HTTP/1.1 200 ")) << host;
    }
  }
  EXPECT_THAT(Ask("GET /metrics", "metrics.example"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(AdminHttpTest, OtherPathsAre404AndOtherMethods405) {
  EXPECT_THAT(Ask("GET /"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("GET /../../etc/passwd"), ::testing::Not(HasSubstr("root:")));
  const std::string answer = Ask("POST /metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD\r\n"));
}

TEST_F(AdminHttpTest, HeadHasNoBody) {
  const std::string answer = Ask("HEAD /metrics");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 11\r\n"));
  EXPECT_THAT(answer, ::testing::EndsWith("\r\n\r\n"));
}

}  // namespace
}  // namespace kvbridge::server
