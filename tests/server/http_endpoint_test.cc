#include "server/http_endpoint.h"

#include <deque>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/http_client.h"
#include "tests/support/notification.h"

namespace kvbridge::server {
namespace {

using test::Notification;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::string_view kProbe = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n";
constexpr absl::string_view kPage = "GET /page HTTP/1.1\r\nHost: x\r\n\r\n";
constexpr absl::string_view kBigPage = "GET /big HTTP/1.1\r\nHost: x\r\n\r\n";
constexpr size_t kBig = 16 << 20;  // more than sockets buffer

HttpAnswer Answer(const HttpRequest& request) {
  return {.body = request.path == "/big" ? std::string(kBig, 'x') : request.path + "\n"};
}

// Nobody's time runs out, unless a test says so.
HttpEndpoint::Options Patient() {
  return {.host = "127.0.0.1",
          .request_time = absl::Hours(1),
          .answer_time = absl::Hours(1),
          .urgent = [](const HttpRequest& request) { return request.path == "/livez"; },
          .answer = &Answer};
}

std::unique_ptr<HttpEndpoint> Start(HttpEndpoint::Options options) {
  auto endpoint = HttpEndpoint::Start(std::move(options));
  EXPECT_TRUE(endpoint.ok()) << endpoint.status();
  return endpoint.ok() ? *std::move(endpoint) : nullptr;
}

std::string Ask(const HttpEndpoint& endpoint, absl::string_view text) {
  HttpClient client(endpoint.port());
  client.Say(text);
  return client.Read();
}

TEST(HttpEndpoint, AnswersWhileOthersSayNothingOrHalf) {
  const auto endpoint = Start(Patient());
  std::deque<HttpClient> others;
  for (int i = 0; i < 400; ++i) {
    others.emplace_back(endpoint->port()).Say(i % 2 == 0 ? "" : "GET /li");
  }
  EXPECT_THAT(Ask(*endpoint, kProbe), EndsWith("\r\n\r\n/livez\n"));
}

TEST(HttpEndpoint, AnswersWhileOthersTakeNoAnswer) {
  const auto endpoint = Start(Patient());
  std::deque<HttpClient> others;
  for (int i = 0; i < 20; ++i) {
    others.emplace_back(endpoint->port(), /*receive_buffer=*/1024).Say(kBigPage);
  }
  EXPECT_THAT(Ask(*endpoint, kProbe), EndsWith("\r\n\r\n/livez\n"));
}

TEST(HttpEndpoint, ALongAnswerArrivesWhole) {
  const auto endpoint = Start(Patient());
  const std::string answer = Ask(*endpoint, kBigPage);
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, kBig);
}

TEST(HttpEndpoint, ProbesPassPagesThatWait) {
  Notification first_runs, go_on;
  std::vector<std::string> order;  // the endpoint's until it is gone
  auto options = Patient();
  options.answer = [&](const HttpRequest& request) {
    order.push_back(request.path);
    if (order.size() == 1) {
      first_runs.Notify();
      go_on.WaitForNotification();
    }
    return Answer(request);
  };
  auto endpoint = Start(std::move(options));
  std::deque<HttpClient> clients;
  clients.emplace_back(endpoint->port()).Say(kPage);
  first_runs.WaitForNotification();
  for (const absl::string_view text : {kPage, kPage, kProbe}) {
    clients.emplace_back(endpoint->port()).Say(text);
  }
  go_on.Notify();
  for (HttpClient& client : clients) client.Read();
  endpoint.reset();
  EXPECT_THAT(order, ElementsAre("/page", "/livez", "/page", "/page"));
}

TEST(HttpEndpoint, TheOldestMakesRoom) {
  auto options = Patient();
  options.max_connections = 2;
  const auto endpoint = Start(std::move(options));
  HttpClient first(endpoint->port()), second(endpoint->port()), third(endpoint->port());
  EXPECT_EQ(first.Read(), "");
  second.Say(kProbe);
  EXPECT_THAT(second.Read(), EndsWith("/livez\n"));
  third.Say(kProbe);
  EXPECT_THAT(third.Read(), EndsWith("/livez\n"));
}

TEST(HttpEndpoint, WhoSaysNothingIsClosedInTime) {
  auto options = Patient();
  options.request_time = absl::Milliseconds(1);
  const auto endpoint = Start(std::move(options));
  EXPECT_EQ(HttpClient(endpoint->port()).Read(), "");
}

TEST(HttpEndpoint, WhoTakesNothingIsClosedInTime) {
  auto options = Patient();
  options.answer_time = absl::Milliseconds(1);
  const auto endpoint = Start(std::move(options));
  HttpClient client(endpoint->port(), /*receive_buffer=*/1024);
  client.Say(kBigPage);
  EXPECT_LT(client.Read().size(), kBig);
}

TEST(HttpEndpoint, AnotherMethodIsRefusedBeforeItsRequestEnds) {
  const auto endpoint = Start(Patient());
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "get"}) {
    const std::string answer =
        Ask(*endpoint, absl::StrCat(method, " /livez HTTP/1.1\r\nContent-Length: 1000000\r\n"));
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 Method Not Allowed\r\n")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD\r\n")) << method;
  }
}

TEST(HttpEndpoint, ABodyDoesNotCostItsSenderTheAnswer) {
  const auto endpoint = Start(Patient());
  const std::string answer = Ask(
      *endpoint,
      absl::StrCat("POST / HTTP/1.1\r\nContent-Length: 60000\r\n\r\n", std::string(60000, 'b')));
  EXPECT_THAT(answer, EndsWith("expected GET or HEAD\n"));
}

TEST(HttpEndpoint, WhatIsNoRequestIsRefused) {
  const auto endpoint = Start(Patient());
  for (const char* text :
       {"\r\n", "GET\r\n", "GET /livez\r\n", "GET livez HTTP/1.1\r\n", "GET /livez HTTP/2.0\r\n",
        "GET /a b HTTP/1.1\r\n", "\x16\x03\x01\r\n"}) {
    EXPECT_THAT(Ask(*endpoint, text), StartsWith("HTTP/1.1 400 Bad Request\r\n")) << text;
  }
  EXPECT_THAT(Ask(*endpoint, absl::StrCat("GET /", std::string(9000, 'a'))),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Ask(*endpoint, kProbe), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpEndpoint, APortInUseIsNamed) {
  const auto endpoint = Start(Patient());
  auto options = Patient();
  options.port = endpoint->port();
  const auto second = HttpEndpoint::Start(std::move(options));
  ASSERT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::string(second.status().message()),
            absl::StrCat("listen.admin: expected an address to bind, got 127.0.0.1:",
                         endpoint->port(), ": Address already in use"));
}

TEST(HttpEndpoint, EndsWithConnectionsOpen) {
  auto endpoint = Start(Patient());
  HttpClient silent(endpoint->port());
  HttpClient deaf(endpoint->port(), /*receive_buffer=*/1024);
  deaf.Say(kBigPage);
  endpoint.reset();
  EXPECT_THAT(silent.Read(), ::testing::AnyOf("", "?"));
}

}  // namespace
}  // namespace kvbridge::server
