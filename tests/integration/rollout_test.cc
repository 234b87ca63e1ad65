// A route that goes back by itself: its circuit breaker, the quality that callers report, and the
// events that tell of both.
#include <string>

#include "absl/strings/str_cat.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 20;

class RolloutTest : public ::testing::Test {
 protected:
  // `configure` changes the only route.
  void Serve(const std::function<void(v1::RouteConfig*)>& configure) {
    HarnessOptions options;
    options.configure = [&](v1::Config* config) { configure(config->mutable_routes(0)); };
    harness_ = std::make_unique<ServerHarness>(std::move(options));
    channel_ = harness_->Connect();
    bridge_ = v1::KvBridge::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
  }

  v1::Decision Transfer() {
    DenseCache source(harness_->mapper().source.geometry, kTokens);
    source.Randomise(3);
    v1::TransferHeader header = harness_->Header(kTokens);
    header.set_request_id(absl::StrCat("request-", ++requests_));
    const CallResult result = harness_->Call(header, harness_->Chunks(source));
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    return result.decision;
  }

  grpc::Status Report(const std::string& request_id, double kl, double top1 = 1) {
    v1::ReportQualityRequest report;
    report.set_request_id(request_id);
    report.set_route(kRoute);
    report.set_artifact_digest(harness_->mapper().digest);
    report.set_kl_nats(kl);
    report.set_top1_agreement(top1);
    report.set_positions(1);
    return Send(report);
  }
  grpc::Status Send(const v1::ReportQualityRequest& report) {
    grpc::ClientContext context;
    v1::ReportQualityResponse response;
    return bridge_->ReportQuality(&context, report, &response);
  }

  v1::RouteHealth Health() {
    grpc::ClientContext context;
    v1::HealthResponse response;
    EXPECT_TRUE(bridge_->Health(&context, {}, &response).ok());
    return response.routes(0);
  }

  grpc::Status SetCircuit(v1::CircuitOverride override) {
    grpc::ClientContext context;
    v1::SetRouteRequest request;
    request.set_route(kRoute);
    request.set_circuit(override);
    v1::SetRouteResponse response;
    return admin_->SetRoute(&context, request, &response);
  }

  double Metric(const std::string& series) {
    const std::string scrape = harness_->server().Metrics();
    const size_t at = scrape.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stod(scrape.substr(at + series.size() + 2));
  }

  // Applied transfers that are reported as `kl`, until the route's stage is another; at most
  // `most`.
  int ReportUntilItStepsBack(double kl, int most) {
    const v1::RouteStage stage = Health().stage();
    for (int reports = 0; reports < most;) {
      const v1::Decision decision = Transfer();
      if (decision.outcome() != v1::OUTCOME_APPLIED) continue;
      EXPECT_TRUE(Report(absl::StrCat("request-", requests_), kl).ok());
      ++reports;
      if (Health().stage() != stage) return reports;
    }
    return most;
  }

  std::unique_ptr<ServerHarness> harness_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KvBridge::Stub> bridge_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  int requests_ = 0;
};

// Every transfer fails: no mapped element is that small.
void FailAlways(v1::RouteConfig* route) {
  route->mutable_policy()->set_max_abs(1e-6);
  route->mutable_circuit()->set_min_transfers(3);
  route->mutable_circuit()->mutable_open_for()->set_seconds(3600);
}

TEST_F(RolloutTest, ACircuitOpensAndItsTransfersFallBackAtOnce) {
  Serve(FailAlways);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Transfer().reason(), v1::REASON_MAGNITUDE_BOUND);
  EXPECT_EQ(Health().circuit(), v1::CIRCUIT_STATE_OPEN);
  const v1::Decision decision = Transfer();
  EXPECT_EQ(decision.reason(), v1::REASON_ROUTE_DISABLED);
  EXPECT_THAT(decision.detail(), HasSubstr("its circuit is open"));
  EXPECT_EQ(decision.bytes_in(), 0);
  const std::string pair = absl::StrCat("pair=\"", kRoute, "\"");
  EXPECT_EQ(Metric("kvbridge_route_circuit_state{" + pair + ",state=\"open\"}"), 1);
  EXPECT_EQ(Metric("kvbridge_route_circuit_opened_total{" + pair + "}"), 1);
}

TEST_F(RolloutTest, AProbeThatFailsOpensItAgain) {
  Serve([](v1::RouteConfig* route) {
    FailAlways(route);
    route->mutable_circuit()->mutable_open_for()->Clear();
    route->mutable_circuit()->mutable_open_for()->set_nanos(1);
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Transfer().reason(), v1::REASON_MAGNITUDE_BOUND);
  EXPECT_EQ(Health().circuit(), v1::CIRCUIT_STATE_OPEN);
  const std::string series =
      absl::StrCat("kvbridge_route_circuit_opened_total{pair=\"", kRoute, "\"}");
  EXPECT_EQ(Metric(series), 3);
}

TEST_F(RolloutTest, AnOperatorOverridesTheCircuit) {
  Serve(FailAlways);
  ASSERT_TRUE(SetCircuit(v1::CIRCUIT_OVERRIDE_FORCE_OPEN).ok());
  EXPECT_EQ(Transfer().reason(), v1::REASON_ROUTE_DISABLED);
  ASSERT_TRUE(SetCircuit(v1::CIRCUIT_OVERRIDE_FORCE_CLOSED).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Transfer().reason(), v1::REASON_MAGNITUDE_BOUND);
  EXPECT_EQ(Health().circuit(), v1::CIRCUIT_STATE_CLOSED);
  EXPECT_EQ(Health().stage(), v1::ROUTE_STAGE_LIVE) << "an override alone leaves the stage";
  ASSERT_TRUE(SetCircuit(v1::CIRCUIT_OVERRIDE_AUTO).ok());
  for (int i = 0; i < 3; ++i) Transfer();
  EXPECT_EQ(Health().circuit(), v1::CIRCUIT_STATE_OPEN);
}

TEST_F(RolloutTest, WhatCallersDoWrongOpensNothing) {
  Serve(FailAlways);
  v1::TransferHeader header = harness_->Header(kTokens);
  header.mutable_source()->mutable_geometry()->set_layers(1);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(harness_->Call(header, {}).status.ok());
  EXPECT_EQ(Health().circuit(), v1::CIRCUIT_STATE_CLOSED);
}

// --- quality; the harness' evidence says 0.01 nats

void AskAll(v1::RouteConfig* route) {
  route->mutable_policy()->set_shadow_rate(1);
  route->mutable_quality()->set_false_alarm_reports(100);
}

TEST_F(RolloutTest, WorseQualityTakesTheRouteBackStageByStageAndNoFurther) {
  Serve(AskAll);
  EXPECT_LT(ReportUntilItStepsBack(0.1, 50), 20);
  EXPECT_EQ(Health().stage(), v1::ROUTE_STAGE_CANARY);
  EXPECT_LT(ReportUntilItStepsBack(0.1, 50), 20);
  EXPECT_EQ(Health().stage(), v1::ROUTE_STAGE_SHADOW);
  EXPECT_EQ(Transfer().reason(), v1::REASON_ROUTE_DISABLED);
  EXPECT_EQ(Metric(absl::StrCat("kvbridge_route_step_backs_total{pair=\"", kRoute, "\"}")), 2);
}

TEST_F(RolloutTest, QualityAsInTheEvidenceChangesNothing) {
  Serve(AskAll);
  EXPECT_EQ(ReportUntilItStepsBack(0.01, 100), 100);
  const std::string pair = absl::StrCat("pair=\"", kRoute, "\"");
  EXPECT_EQ(Metric("kvbridge_quality_probes_total{" + pair + ",result=\"pass\"}"), 100);
  EXPECT_EQ(Metric("kvbridge_quality_threshold_nats{" + pair + "}"), 0.015);
}

TEST_F(RolloutTest, AReportCountsOnceAndOnlyForATransferThatWasAsked) {
  Serve(AskAll);
  EXPECT_EQ(Report("request-1", 0.01).error_code(), grpc::NOT_FOUND);
  ASSERT_TRUE(Transfer().shadow_selected());
  EXPECT_TRUE(Report("request-1", 0.01).ok());
  EXPECT_EQ(Report("request-1", 0.01).error_code(), grpc::NOT_FOUND);
  const std::string error =
      absl::StrCat("kvbridge_quality_probes_total{pair=\"", kRoute, "\",result=\"error\"}");
  EXPECT_EQ(Metric(error), 2);
}

TEST_F(RolloutTest, ReportsAreCheckedFieldByField) {
  Serve(AskAll);
  Transfer();
  const auto refused = [&](auto change) {
    v1::ReportQualityRequest report;
    report.set_request_id("request-1");
    report.set_route(kRoute);
    report.set_artifact_digest(harness_->mapper().digest);
    report.set_positions(1);
    change(report);
    const grpc::Status status = Send(report);
    return absl::StrCat(status.error_code(), ": ", status.error_message());
  };
  EXPECT_THAT(refused([](auto& r) { r.set_kl_nats(-1); }), HasSubstr("3: kl_nats: expected 0"));
  EXPECT_THAT(refused([](auto& r) { r.set_kl_nats(NAN); }), HasSubstr("3: kl_nats"));
  EXPECT_THAT(refused([](auto& r) { r.set_top1_agreement(1.5); }), HasSubstr("3: top1_agreement"));
  EXPECT_THAT(refused([](auto& r) { r.set_nll_delta(INFINITY); }), HasSubstr("3: nll_delta"));
  EXPECT_THAT(refused([](auto& r) { r.set_positions(0); }), HasSubstr("3: positions"));
  EXPECT_THAT(refused([](auto& r) { r.set_route("nowhere"); }), HasSubstr("5: route"));
  EXPECT_THAT(refused([](auto& r) { r.set_artifact_digest("other"); }),
              HasSubstr("9: artifact_digest"));
}

// --- events

class Watcher {
 public:
  Watcher(v1::KvBridge::Stub* bridge, const std::string& route) {
    v1::WatchEventsRequest request;
    request.set_route(route);
    stream_ = bridge->WatchEvents(&context_, request);
    stream_->WaitForInitialMetadata();
  }
  v1::WatchEventsResponse Next() {
    v1::WatchEventsResponse event;
    EXPECT_TRUE(stream_->Read(&event));
    return event;
  }
  grpc::Status End() { return stream_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::WatchEventsResponse>> stream_;
};

TEST_F(RolloutTest, WatchersSeeDecisionsAndChangesInOrder) {
  Serve(FailAlways);
  Watcher all(bridge_.get(), "");
  Watcher other(bridge_.get(), "elsewhere");
  for (int i = 0; i < 3; ++i) Transfer();
  int decisions = 0;
  v1::WatchEventsResponse event = all.Next();
  while (event.has_event()) {
    EXPECT_EQ(event.event().reason(), v1::REASON_MAGNITUDE_BOUND);
    EXPECT_EQ(event.event().pair(), kRoute);
    ++decisions;
    event = all.Next();
  }
  EXPECT_LE(decisions, 3);
  EXPECT_EQ(event.route_event().what(), "circuit");
  EXPECT_EQ(event.route_event().from(), "closed");
  EXPECT_EQ(event.route_event().to(), "open");
  EXPECT_EQ(event.route_event().cause(), "circuit");
  EXPECT_EQ(event.route_event().schema(), "kvbridge.event/v1");
  harness_->server().RequestDrain(/*skip_delay=*/true);
  harness_->server().Wait();
  EXPECT_EQ(other.End().error_code(), grpc::UNAVAILABLE);
}

TEST_F(RolloutTest, TooManyWatchersAreRefusedUntilSomeLeave) {
  Serve([](v1::RouteConfig*) {});
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (size_t i = 0; i < EventHub::kMaxWatchers; ++i) {
    watchers.push_back(std::make_unique<Watcher>(bridge_.get(), ""));
  }
  EXPECT_EQ(Watcher(bridge_.get(), "").End().error_code(), grpc::RESOURCE_EXHAUSTED);
  watchers.front()->Cancel();
  EXPECT_EQ(watchers.front()->End().error_code(), grpc::CANCELLED);
  grpc::StatusCode code = grpc::RESOURCE_EXHAUSTED;
  while (code == grpc::RESOURCE_EXHAUSTED) {
    Watcher again(bridge_.get(), "");
    again.Cancel();
    code = again.End().error_code();
  }
  EXPECT_EQ(code, grpc::CANCELLED);
}

TEST_F(RolloutTest, AnOperatorsStageIsAnEventToo) {
  Serve([](v1::RouteConfig*) {});
  Watcher watcher(bridge_.get(), kRoute);
  grpc::ClientContext context;
  v1::SetRouteRequest request;
  request.set_route(kRoute);
  request.set_stage(v1::ROUTE_STAGE_SHADOW);
  v1::SetRouteResponse response;
  ASSERT_TRUE(admin_->SetRoute(&context, request, &response).ok());
  const v1::RouteEvent event = watcher.Next().route_event();
  EXPECT_EQ(event.what(), "stage");
  EXPECT_EQ(event.from(), "live");
  EXPECT_EQ(event.to(), "shadow");
  EXPECT_EQ(event.cause(), "operator");
}

}  // namespace
}  // namespace kvbridge::server
