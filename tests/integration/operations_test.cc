// What operators and routers ask beside transfers.
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/admin_service.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;

class OperationsTest : public ::testing::Test {
 protected:
  OperationsTest() : channel_(harness_.Connect()) {
    bridge_ = v1::KvBridge::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
  }

  CallResult Transfer(int64_t tokens = 40) {
    DenseCache source(harness_.mapper().source.geometry, tokens);
    source.Randomise(3);
    return harness_.Call(harness_.Header(tokens), harness_.Chunks(source));
  }

  ServerHarness harness_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KvBridge::Stub> bridge_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(OperationsTest, CapabilitiesNameWhatIsServed) {
  grpc::ClientContext context;
  v1::GetCapabilitiesResponse got;
  ASSERT_TRUE(bridge_->GetCapabilities(&context, {}, &got).ok());
  EXPECT_EQ(got.max_chunk_bytes(), (4 << 20) - (64 << 10));
  EXPECT_EQ(got.tile_tokens(), 32);
  EXPECT_EQ(got.max_tokens(), 131072);
  ASSERT_EQ(got.routes_size(), 1);
  EXPECT_EQ(got.routes(0).artifact_digest(), harness_.mapper().digest);
  EXPECT_EQ(got.routes(0).source().identity().model_id(), "test/small");
  EXPECT_THAT(got.features(), ::testing::IsSupersetOf({"ReportQuality", "WatchEvents"}));
}

TEST_F(OperationsTest, APlanKnowsTheMapsRateFromTheLoadAndThePlanesFromTransfers) {
  v1::PlanRequest request;
  request.set_route(kRoute);
  request.set_prompt_tokens(33);
  request.set_prefill_tokens_per_second(1);
  const auto plan = [&] {
    grpc::ClientContext context;
    v1::PlanResponse response;
    EXPECT_TRUE(bridge_->Plan(&context, request, &response).ok());
    return response;
  };
  const v1::PlanResponse before = plan();
  EXPECT_EQ(before.covered_tokens(), 32);
  EXPECT_GT(before.map_seconds().value(), 0);
  EXPECT_EQ(before.move_seconds().source(), "unmeasured");
  EXPECT_FALSE(before.move_seconds().has_value());
  EXPECT_EQ(before.evidence().verdict(), "PASS");
  EXPECT_EQ(before.evidence().kl_nats().value(), 0.01);
  ASSERT_EQ(Transfer().decision.outcome(), v1::OUTCOME_APPLIED);
  const v1::PlanResponse after = plan();
  EXPECT_GT(after.map_seconds().value(), 0);
  EXPECT_GT(after.move_seconds().value(), 0);
  EXPECT_TRUE(after.worth_it()) << after.detail();
  request.set_plane(v1::PLANE_REGION);
  EXPECT_EQ(plan().move_seconds().value(), 0) << "the map itself reads and writes regions";
}

TEST_F(OperationsTest, APlanForAnUnknownRouteIsNotFound) {
  grpc::ClientContext context;
  v1::PlanRequest request;
  request.set_route("nowhere");
  v1::PlanResponse response;
  EXPECT_EQ(bridge_->Plan(&context, request, &response).error_code(), grpc::NOT_FOUND);
}

TEST_F(OperationsTest, HealthFollowsTheArtifact) {
  const auto health = [&] {
    grpc::ClientContext context;
    v1::HealthResponse response;
    EXPECT_TRUE(bridge_->Health(&context, {}, &response).ok());
    return response;
  };
  const std::string service = std::string("kvbridge.route/") + kRoute;
  EXPECT_EQ(health().state(), v1::SERVER_STATE_READY);
  EXPECT_TRUE(harness_.server().state().ready().ok);
  EXPECT_EQ(harness_.GrpcHealth(service), "SERVING");
  EXPECT_EQ(harness_.GrpcHealth("kvbridge.v1.KvBridge"), "SERVING");
  EXPECT_EQ(harness_.GrpcHealth("stranger"), "NOT_FOUND");

  grpc::ClientContext context;
  v1::UnloadArtifactRequest unload;
  unload.set_route(kRoute);
  v1::UnloadArtifactResponse unloaded;
  ASSERT_TRUE(admin_->UnloadArtifact(&context, unload, &unloaded).ok());
  EXPECT_EQ(health().state(), v1::SERVER_STATE_DEGRADED);
  EXPECT_FALSE(health().routes(0).serving());
  EXPECT_THAT(health().routes(0).detail(), HasSubstr("no artifact is loaded"));
  EXPECT_EQ(harness_.GrpcHealth(service), "NOT_SERVING");
  EXPECT_THAT(harness_.server().state().ready().why, HasSubstr(kRoute));
  EXPECT_EQ(Transfer().decision.reason(), v1::REASON_ARTIFACT_UNAVAILABLE);
}

TEST_F(OperationsTest, ABadArtifactChangesNothing) {
  const auto path = harness_.artifact_dir().parent_path() / "damaged";
  std::filesystem::copy(harness_.artifact_dir(), path);
  {
    std::fstream file(path / "mapper.safetensors", std::ios::in | std::ios::out);
    file.seekp(-8, std::ios::end);
    file << "damaged!";
  }
  const auto load = [&](const std::string& dir) {
    grpc::ClientContext context;
    v1::LoadArtifactRequest request;
    request.set_route(kRoute);
    request.set_path(dir);
    v1::LoadArtifactResponse response;
    return admin_->LoadArtifact(&context, request, &response);
  };
  EXPECT_EQ(load(path.string()).error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(Transfer().decision.outcome(), v1::OUTCOME_APPLIED);
  EXPECT_TRUE(load("").ok());
  EXPECT_EQ(Transfer().decision.outcome(), v1::OUTCOME_APPLIED);
}

TEST_F(OperationsTest, ListArtifactsTellsWhatIsResident) {
  grpc::ClientContext context;
  v1::ListArtifactsResponse response;
  ASSERT_TRUE(admin_->ListArtifacts(&context, {}, &response).ok());
  ASSERT_EQ(response.artifacts_size(), 1);
  EXPECT_EQ(response.artifacts(0).digest(), harness_.mapper().digest);
  EXPECT_EQ(response.artifacts(0).verdict(), "PASS");
  EXPECT_GT(response.artifacts(0).resident_bytes(), 0);
}

TEST_F(OperationsTest, AStageChangeTakesEffectAtOnce) {
  const auto set = [&](v1::RouteStage stage, v1::SetRouteResponse* response) {
    grpc::ClientContext context;
    v1::SetRouteRequest request;
    request.set_route(kRoute);
    request.set_stage(stage);
    return admin_->SetRoute(&context, request, response);
  };
  v1::SetRouteResponse response;
  ASSERT_TRUE(set(v1::ROUTE_STAGE_OFF, &response).ok());
  EXPECT_EQ(response.previous(), v1::ROUTE_STAGE_LIVE);
  EXPECT_EQ(Transfer().decision.reason(), v1::REASON_ROUTE_DISABLED);
  ASSERT_TRUE(set(v1::ROUTE_STAGE_SHADOW, &response).ok());
  const CallResult shadow = Transfer();
  EXPECT_EQ(shadow.decision.reason(), v1::REASON_ROUTE_DISABLED);
  EXPECT_EQ(shadow.decision.bytes_out(), 0) << "a shadow result left the server";
  EXPECT_EQ(set(v1::ROUTE_STAGE_UNSPECIFIED, &response).error_code(), grpc::INVALID_ARGUMENT);
}

TEST_F(OperationsTest, EveryDecisionIsOneEventWithoutSecrets) {
  v1::TransferHeader header = harness_.Header(40);
  header.set_tenant("tenant-secret");
  header.mutable_source_selection()->set_token_ids_sha256(std::string(64, 'd'));
  harness_.Call(header, {});
  harness_.server().RequestDrain(/*skip_delay=*/true);
  harness_.server().Wait();
  const std::string log = harness_.Log();
  EXPECT_THAT(log, HasSubstr("\"event\":\"kvbridge_handoff\""));
  EXPECT_THAT(log, HasSubstr("\"reason\":\"shape_mismatch\""));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("tenant-secret")));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("dddddddd")));
}

TEST(RouteTest, OneThatCannotLoadDoesNotStopTheServer) {
  HarnessOptions options;
  options.configure = [](v1::Config* config) {
    v1::RouteConfig& broken = *config->add_routes();
    broken = config->routes(0);
    broken.set_name("broken");
    broken.set_artifact("/nonexistent");
  };
  ServerHarness harness(std::move(options));
  EXPECT_EQ(harness.server().state().state(), v1::SERVER_STATE_DEGRADED);
  EXPECT_TRUE(harness.server().state().ready().ok);
  v1::TransferHeader header = harness.Header(10);
  header.set_route("broken");
  EXPECT_EQ(harness.Call(header, {}).decision.reason(), v1::REASON_ARTIFACT_UNAVAILABLE);
}

TEST(RouteTest, WithoutEvidenceItSaysThatEveryTransferWillFallBack) {
  ServerHarness harness({.proven = false});
  const std::string never = "every transfer will fall back: unproven_pair";
  EXPECT_THAT(harness.Log(), HasSubstr(never));
  const auto bridge = v1::KvBridge::NewStub(harness.Connect());
  grpc::ClientContext context;
  v1::HealthResponse health;
  ASSERT_TRUE(bridge->Health(&context, {}, &health).ok());
  EXPECT_TRUE(health.routes(0).serving());
  EXPECT_EQ(health.routes(0).detail(), never);
  EXPECT_EQ(harness.Call(harness.Header(10), {}).decision.reason(), v1::REASON_UNPROVEN_PAIR);
}

TEST(RouteTest, NoneAtAllIsWarnedAbout) {
  HarnessOptions options;
  options.configure = [](v1::Config* config) { config->clear_routes(); };
  ServerHarness harness(std::move(options));
  EXPECT_THAT(harness.Log(), HasSubstr("no routes are configured: every transfer will fall back"));
}

TEST(AddressesTest, APortInUseIsNamed) {
  HarnessOptions options;
  options.configure = [](v1::Config* config) { config->mutable_listen()->add_grpc("127.0.0.1:0"); };
  ServerHarness first(std::move(options));
  const std::string taken = first.server().grpc_addresses()[1];
  LoadedConfig loaded = LoadConfig({}).value();
  v1::ListenConfig& listen = *loaded.config.mutable_listen();
  listen.clear_grpc();
  listen.add_grpc("127.0.0.1:0");
  listen.add_grpc(taken);
  listen.set_admin("off");
  std::ostringstream text;
  base::SystemClock clock;
  Log log({.sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text)}, &clock);
  const auto second = Server::Create(loaded, &log).value();
  EXPECT_EQ(second->Start().message(), "listen.grpc: expected an address to bind, got " + taken +
                                           ": it is already in use, or is not this host's");
}

TEST(AddressesTest, ASecondServerDoesNotTakeASocketInUse) {
  ServerHarness first;
  LoadedConfig loaded = LoadConfig({}).value();
  loaded.config.mutable_listen()->clear_grpc();
  loaded.config.mutable_listen()->add_grpc(first.server().grpc_addresses()[0]);
  loaded.config.mutable_listen()->set_admin("off");
  std::ostringstream text;
  base::SystemClock clock;
  Log log({.sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text)}, &clock);
  const auto second = Server::Create(loaded, &log).value();
  EXPECT_EQ(second->Start().code(), absl::StatusCode::kFailedPrecondition);
  DenseCache source(first.mapper().source.geometry, 10);
  source.Randomise(1);
  EXPECT_EQ(first.Call(first.Header(10), first.Chunks(source)).decision.outcome(),
            v1::OUTCOME_APPLIED);
}

}  // namespace
}  // namespace kvbridge::server
