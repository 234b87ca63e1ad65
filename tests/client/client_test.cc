#include "client/cpp/client.h"

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/client/test_cache.h"
#include "tests/support/fake_kvbridge_server.h"

namespace kvbridge::client {
namespace {

using test::Behaviour;
using test::FakeKvbridgeServer;
using ::testing::HasSubstr;

// Nobody listens here: reserved ports are not handed out to others.
constexpr char kNobody[] = "127.0.0.1:1";

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override { source_.Fill(); }

  std::unique_ptr<Client> Connect(const std::string& target) {
    options_.target = target;
    return Client::Create(options_).value();
  }
  absl::StatusOr<TransferResult> Transfer(Client& client, std::stop_token stop = {}) {
    return client.Transfer(transfer_, source_.source(), target_.target(), stop);
  }
  TransferResult TransferFrom(Behaviour behaviour) {
    FakeKvbridgeServer server({.behaviour = behaviour});
    return Transfer(*Connect(server.target())).value();
  }
  // A fallback that leaves nothing of the answer behind.
  void ExpectFallback(const TransferResult& result, const std::string& reason,
                      const std::string& detail) {
    EXPECT_EQ(result.outcome, v1::OUTCOME_FALLBACK_REPREFILL);
    EXPECT_EQ(result.reason, reason);
    EXPECT_THAT(result.detail, HasSubstr(detail));
    EXPECT_EQ(result.covered_tokens, 0);
    EXPECT_TRUE(target_.HoldsNothing());
  }

  static TransferOptions DefaultTransfer() {
    TransferOptions transfer;
    transfer.header.set_request_id("r-1");
    transfer.header.set_route("small-to-large");
    transfer.deadline = absl::Seconds(60);
    return transfer;
  }

  ClientOptions options_ = {.retry = {.max_attempts = 3,
                                      .initial_backoff = absl::Milliseconds(1),
                                      .max_backoff = absl::Milliseconds(2)}};
  TransferOptions transfer_ = DefaultTransfer();
  TestCache source_{kSmallShape, Layout::kHeadMajor};
  TestCache target_{kSmallShape, Layout::kTokenMajor};
};

TEST_F(ClientTest, AnAppliedTransferFillsTheCoveredTokensOnly) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  transfer_.header.mutable_limits()->set_native_tail(3);
  const TransferResult result = Transfer(*client).value();
  EXPECT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  EXPECT_EQ(result.covered_tokens, 7);
  EXPECT_EQ(result.reason, "");
  EXPECT_EQ(result.attempts, 1);
  EXPECT_EQ(result.bytes_sent, 3 * 2 * 10 * 32);
  EXPECT_EQ(result.bytes_received, 3 * 2 * 7 * 32);
  EXPECT_TRUE(result.decision.approximate());
  EXPECT_TRUE(target_.Holds(0, 7));
  EXPECT_TRUE(target_.IsAll(TestCache::kUntouched, 7, 10));
}

TEST_F(ClientTest, TheHeaderStatesWhatTheViewsAre) {
  FakeKvbridgeServer server({});
  ASSERT_TRUE(Transfer(*Connect(server.target())).ok());
  const v1::TransferHeader header = server.last_header();
  EXPECT_EQ(header.request_id(), "r-1");
  EXPECT_EQ(header.source().geometry().layers(), 3);
  EXPECT_EQ(header.source().geometry().kv_heads(), 2);
  EXPECT_EQ(header.source().geometry().head_dim(), 8);
  EXPECT_EQ(header.target().geometry().element_type(), v1::ELEMENT_TYPE_BF16);
  EXPECT_EQ(header.source_selection().tokens(), 10);
  EXPECT_EQ(header.source_selection().key_state(), v1::KEY_STATE_ROPED);
  EXPECT_TRUE(header.source_selection().has_inline_());
  EXPECT_TRUE(header.target_selection().has_inline_());
}

TEST_F(ClientTest, FewerTokensThanTheViewHoldsMayBeSent) {
  FakeKvbridgeServer server({});
  transfer_.header.mutable_source_selection()->set_tokens(5);
  transfer_.header.set_prompt_tokens(10);
  const TransferResult result = Transfer(*Connect(server.target())).value();
  EXPECT_EQ(result.covered_tokens, 5);
  EXPECT_EQ(result.bytes_sent, 3 * 2 * 5 * 32);
  EXPECT_TRUE(target_.Holds(0, 5));
}

TEST_F(ClientTest, ASmallerTargetIsCoveredAsFarAsItGoes) {
  FakeKvbridgeServer server({});
  CacheShape shape = kSmallShape;
  shape.tokens = 6;
  TestCache target(shape, Layout::kHeadMajor);
  auto client = Connect(server.target());
  const auto result = client->Transfer(transfer_, source_.source(), target.target());
  ASSERT_TRUE(result.ok() && result->applied());
  EXPECT_EQ(result->covered_tokens, 6);
  EXPECT_TRUE(target.Holds(0, 6));
}

TEST_F(ClientTest, TheTokenOfTheMomentGoesWithTheCall) {
  FakeKvbridgeServer server({});
  int asked = 0;
  options_.token = [&] { return absl::StrCat("t", ++asked); };
  transfer_.plane = PlaneChoice::kInline;
  auto client = Connect(server.target());
  for (const char* token : {"Bearer t1", "Bearer t2"}) {
    EXPECT_TRUE(Transfer(*client).value().applied());
    EXPECT_EQ(server.last_metadata("authorization"), token);
  }
}

TEST_F(ClientTest, TheCallersTraceGoesWithTheCallAndTheServersSpanComesBack) {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  for (const Behaviour behaviour :
       {Behaviour::kIdentity, Behaviour::kRefuse, Behaviour::kErrorStatus}) {
    FakeKvbridgeServer server({.behaviour = behaviour});
    auto client = Connect(server.target());
    EXPECT_EQ(Transfer(*client).value().trace_id, "");
    EXPECT_EQ(server.last_metadata("traceparent"), "");
    transfer_.traceparent = "00-" + trace + "-00f067aa0ba902b7-01";
    transfer_.tracestate = "vendor=x";
    const TransferResult result = Transfer(*client).value();
    EXPECT_EQ(server.last_metadata("traceparent"), transfer_.traceparent);
    EXPECT_EQ(server.last_metadata("tracestate"), "vendor=x");
    EXPECT_EQ(result.trace_id, trace);
    EXPECT_EQ(result.span_id, "00f067aa0ba902b0");
    transfer_.traceparent = transfer_.tracestate = "";
  }
}

TEST_F(ClientTest, WhatIsNoTraceIsRefused) {
  auto client = Connect(kNobody);
  transfer_.traceparent = "00-abc";
  EXPECT_THAT(Transfer(*client).status().message(), HasSubstr("traceparent: expected W3C's"));
  transfer_.traceparent = "";
  transfer_.tracestate = "vendor=x";
  EXPECT_THAT(Transfer(*client).status().message(), HasSubstr("tracestate: expected at most 512"));
}

TEST_F(ClientTest, ATokenLeavesTheHostByTlsOnly) {
  options_.target = "example.org:50061";
  options_.token = [] { return "secret"; };
  EXPECT_THAT(Client::Create(options_).status().message(), HasSubstr("token: expected tls"));
  options_.tls.emplace();
  EXPECT_TRUE(Client::Create(options_).ok());
}

TEST_F(ClientTest, AUnixSocketWorks) {
  const std::string path = ::testing::TempDir() + "kvbridge-client-" + std::to_string(getpid());
  FakeKvbridgeServer server({.address = "unix:" + path});
  EXPECT_TRUE(Transfer(*Connect(server.target())).value().applied());
}

// Large enough for several chunks each way and for gRPC's flow control to matter.
TEST_F(ClientTest, ALargeCacheGoesBothWaysAtOnce) {
  const CacheShape shape = {.element_type = v1::ELEMENT_TYPE_BF16,
                            .layers = 6,
                            .kv_heads = 8,
                            .head_dim = 128,
                            .tokens = 600};
  TestCache source(shape, Layout::kTokenMajor);
  TestCache target(shape, Layout::kHeadMajor);
  source.Fill();
  SourceView view = source.source();
  FakeKvbridgeServer server({.tile_tokens = 256});
  auto client = Connect(server.target());
  for (const bool in_place : {false, true}) {
    view.owner = in_place ? std::make_shared<int>(0) : nullptr;
    const TransferResult result = client->Transfer(transfer_, view, target.target()).value();
    ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
    EXPECT_TRUE(target.Holds(0, 599));
    target = TestCache(shape, Layout::kHeadMajor);
  }
}

TEST_F(ClientTest, ConcurrentTransfersShareOneClient) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  std::vector<std::thread> threads;
  std::vector<TestCache> targets(8, TestCache(kSmallShape, Layout::kTokenMajor));
  for (TestCache& target : targets) {
    threads.emplace_back([&] {
      EXPECT_TRUE(client->Transfer(transfer_, source_.source(), target.target()).value().applied());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const TestCache& target : targets) EXPECT_TRUE(target.Holds(0, 9));
  EXPECT_EQ(client->counters().requests.at("applied"), 8u);
}

TEST_F(ClientTest, ARefusalIsAnAnswerAndNoPayloadWasSent) {
  v1::Decision refusal;
  refusal.set_outcome(v1::OUTCOME_UNSUPPORTED);
  refusal.set_reason(v1::REASON_INCOMPATIBLE_MODEL);
  refusal.set_reason_class(v1::REASON_CLASS_CLIENT);
  refusal.set_detail("source.identity.tokenizer_sha256: expected a, got b");
  FakeKvbridgeServer server({.behaviour = Behaviour::kRefuse, .refusal = refusal});
  auto client = Connect(server.target());
  const TransferResult result = Transfer(*client).value();
  EXPECT_EQ(result.outcome, v1::OUTCOME_UNSUPPORTED);
  EXPECT_EQ(result.reason, "incompatible_model");
  EXPECT_EQ(result.reason_class, "client");
  EXPECT_EQ(result.detail, refusal.detail());
  EXPECT_EQ(result.bytes_sent, 0);
  EXPECT_EQ(server.payload_chunks(), 0);
  EXPECT_TRUE(target_.IsAll(TestCache::kUntouched, 0, 10));
  EXPECT_EQ(client->counters().requests.at("unsupported"), 1u);
}

TEST_F(ClientTest, AFallbackAfterChunksLeavesZeroes) {
  const TransferResult result = TransferFrom(Behaviour::kFailAfterChunks);
  ExpectFallback(result, "non_finite", "got NaN");
  EXPECT_EQ(result.reason_class, "quality");
  EXPECT_GT(result.bytes_received, 0);
}

TEST_F(ClientTest, AnAnswerThatIsNotWholeIsNeverApplied) {
  ExpectFallback(TransferFrom(Behaviour::kMissingChunk), "transport", "never came");
  ExpectFallback(TransferFrom(Behaviour::kDamagedCrc), "transport", "crc32c");
  ExpectFallback(TransferFrom(Behaviour::kDuplicateChunk), "transport", "came before");
  ExpectFallback(TransferFrom(Behaviour::kChunkBeyondCovered), "transport", "tokens");
  ExpectFallback(TransferFrom(Behaviour::kChunkBeforeAccepted), "transport", "before Accepted");
  ExpectFallback(TransferFrom(Behaviour::kAcceptsTooMuch), "transport", "covered_tokens");
}

TEST_F(ClientTest, AStreamThatBreaksIsAFallback) {
  ExpectFallback(TransferFrom(Behaviour::kCloseMidway), "transport", "gone");
  ExpectFallback(TransferFrom(Behaviour::kNoCompleted), "transport", "without Completed");
  ExpectFallback(TransferFrom(Behaviour::kErrorStatus), "internal", "a bug");
}

TEST_F(ClientTest, OneEndOnly) {
  ExpectFallback(TransferFrom(Behaviour::kCompletedTwice), "transport", "after Completed");
  ExpectFallback(TransferFrom(Behaviour::kAppliedAfterError), "transport", "after Completed");
}

TEST_F(ClientTest, ASilentServerEndsWithTheDeadline) {
  transfer_.deadline = absl::Milliseconds(50);
  ExpectFallback(TransferFrom(Behaviour::kSilent), "deadline_exceeded", "");
}

TEST_F(ClientTest, ADeadlineInTheMiddleLeavesZeroes) {
  transfer_.deadline = absl::Milliseconds(200);
  FakeKvbridgeServer server({.behaviour = Behaviour::kStall});
  auto client = Connect(server.target());
  ExpectFallback(Transfer(*client).value(), "deadline_exceeded", "");
}

TEST_F(ClientTest, CancellingStopsAtOnceAndLeavesZeroes) {
  FakeKvbridgeServer server({.behaviour = Behaviour::kStall});
  auto client = Connect(server.target());
  std::stop_source stop;
  std::thread canceller([&] {
    server.WaitUntilStalled();
    stop.request_stop();
  });
  const auto result = Transfer(*client, stop.get_token());
  canceller.join();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(target_.HoldsNothing());
  EXPECT_EQ(client->counters().requests.at("cancelled"), 1u);
}

TEST_F(ClientTest, ATransferCancelledBeforeItStartsSendsNothing) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(Transfer(*client, stop.get_token()).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server.payload_chunks(), 0);
}

TEST_F(ClientTest, WhatNobodyAcceptedIsTriedAgain) {
  FakeKvbridgeServer server({.unavailable_calls = 2});
  auto client = Connect(server.target());
  const TransferResult result = Transfer(*client).value();
  EXPECT_TRUE(result.applied()) << result.detail;
  EXPECT_EQ(result.attempts, 3);
  EXPECT_EQ(server.calls(), 3);
  EXPECT_EQ(client->counters().retries, 2u);
}

TEST_F(ClientTest, AttemptsAreBounded) {
  FakeKvbridgeServer server({.unavailable_calls = 99});
  const TransferResult result = Transfer(*Connect(server.target())).value();
  ExpectFallback(result, "unreachable", "starting");
  EXPECT_EQ(server.calls(), 3);
}

TEST_F(ClientTest, WhatWasAcceptedIsNeverTriedAgain) {
  FakeKvbridgeServer server({.accepted_then_lost = 1});
  const TransferResult result = Transfer(*Connect(server.target())).value();
  ExpectFallback(result, "transport", "lost");
  EXPECT_EQ(result.attempts, 1);
  EXPECT_EQ(server.calls(), 1);
}

TEST_F(ClientTest, AServerThatIsDownIsAFallbackWithItsReason) {
  auto client = Connect(kNobody);
  const TransferResult result = Transfer(*client).value();
  ExpectFallback(result, "unreachable", "");
  EXPECT_EQ(result.reason_class, "infra");
  EXPECT_EQ(result.attempts, 3);
  EXPECT_EQ(client->counters().fallbacks.at("unreachable"), 1u);
}

TEST_F(ClientTest, CallersMayAskToFailInstead) {
  options_.on_fallback = OnFallback::kFail;
  const absl::Status status = Transfer(*Connect(kNobody)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unreachable: "));
  FakeKvbridgeServer server({.behaviour = Behaviour::kFailAfterChunks});
  EXPECT_EQ(Transfer(*Connect(server.target())).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(target_.HoldsNothing());
}

TEST_F(ClientTest, TheCircuitOpensAndClosesAgain) {
  absl::Time now = absl::UnixEpoch();
  options_.now = [&now] { return now; };
  options_.retry.max_attempts = 1;
  options_.circuit = {.failures = 2, .open_for = absl::Seconds(5)};
  FakeKvbridgeServer server({.unavailable_calls = 2});
  auto client = Connect(server.target());
  EXPECT_EQ(Transfer(*client).value().reason, "unreachable");
  EXPECT_EQ(Transfer(*client).value().reason, "unreachable");
  const TransferResult open = Transfer(*client).value();
  ExpectFallback(open, "circuit_open",
                 "not asked after 2 failures in a row; the last: unreachable: starting");
  EXPECT_EQ(open.attempts, 0);
  EXPECT_EQ(server.calls(), 2);
  EXPECT_EQ(client->counters().circuit_state, Circuit::State::kOpen);
  now += absl::Seconds(5);
  EXPECT_TRUE(Transfer(*client).value().applied());
  EXPECT_EQ(client->counters().circuit_state, Circuit::State::kClosed);
}

TEST_F(ClientTest, ContradictionsAreRefusedBeforeAnythingIsSent) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  const auto expect_refused = [&](const char* field) {
    const absl::Status status = Transfer(*client).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  transfer_.header.mutable_source()->mutable_geometry()->set_kv_heads(4);
  expect_refused("header.source.geometry.kv_heads: expected 2 (the view's), got 4");
  transfer_ = DefaultTransfer();
  transfer_.header.mutable_source_selection()->set_tokens(11);
  expect_refused("header.source_selection.tokens");
  EXPECT_EQ(server.calls(), 0);
  EXPECT_EQ(client->counters().requests.at("error"), 2u);
}

TEST_F(ClientTest, OptionsAreChecked) {
  const auto expect_refused = [](const ClientOptions& options, const char* field) {
    const absl::Status status = Client::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  expect_refused({}, "target");
  expect_refused({.target = kNobody, .channels = 0}, "channels");
  expect_refused({.target = kNobody, .connect_timeout = absl::ZeroDuration()}, "connect_timeout");
  expect_refused({.target = kNobody, .retry = {.max_attempts = 0}}, "retry.max_attempts");
  expect_refused({.target = kNobody, .circuit = {.failures = 0}}, "circuit.failures");
}

TEST_F(ClientTest, PlainCallsReturnTheServersAnswerOrItsError) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  v1::PlanRequest plan;
  plan.set_route("small-to-large");
  plan.set_prompt_tokens(100);
  EXPECT_EQ(client->Plan(plan).value().covered_tokens(), 99);
  plan.set_route("nowhere");
  EXPECT_EQ(client->Plan(plan).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client->Health().value().state(), v1::SERVER_STATE_READY);
  EXPECT_EQ(client->Health("nowhere").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client->GetCapabilities().value().version(), "9.9.9");
  EXPECT_EQ(client->LoadArtifact("small-to-large", "").value().digest(), std::string(64, 'b'));
  EXPECT_EQ(client->LoadArtifact("small-to-large", "damaged").status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_TRUE(client->UnloadArtifact("small-to-large").ok());
  EXPECT_EQ(client->ListArtifacts().value().artifacts_size(), 1);
  EXPECT_EQ(Connect(kNobody)->Health().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ClientTest, ARouteIsSetAndItsStageBeforeIsTold) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  v1::SetRouteRequest request;
  request.set_route("small-to-large");
  EXPECT_EQ(client->SetRoute(request)->previous(), v1::ROUTE_STAGE_LIVE);
  request.set_route("nowhere");
  EXPECT_TRUE(absl::IsNotFound(client->SetRoute(request).status()));
}

TEST_F(ClientTest, WhatTheServerCancelsIsNotTheCallersDoing) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  const auto never = [](const v1::WatchEventsResponse&) { return absl::OkStatus(); };
  EXPECT_TRUE(absl::IsUnavailable(client->WatchEvents("going-away", never)));
  v1::SetRouteRequest request;
  request.set_route("going-away");
  EXPECT_TRUE(absl::IsUnavailable(client->SetRoute(request).status()));
}

TEST_F(ClientTest, EventsAreWatchedUntilTheCallerHasEnough) {
  FakeKvbridgeServer server({});
  auto client = Connect(server.target());
  int events = 0;
  const absl::Status refused = client->WatchEvents("", [&](const auto& response) {
    EXPECT_EQ(response.event().pair(), "small-to-large");
    return ++events == 3 ? absl::DataLossError("enough") : absl::OkStatus();
  });
  EXPECT_EQ(refused, absl::DataLossError("enough"));
  EXPECT_EQ(events, 3);

  std::stop_source stop;
  const auto until_stopped = [&](const v1::WatchEventsResponse&) {
    stop.request_stop();
    return absl::OkStatus();
  };
  EXPECT_TRUE(client->WatchEvents("small-to-large", until_stopped, stop.get_token()).ok());
  EXPECT_TRUE(absl::IsNotFound(client->WatchEvents("nowhere", until_stopped)));
}

}  // namespace
}  // namespace kvbridge::client
