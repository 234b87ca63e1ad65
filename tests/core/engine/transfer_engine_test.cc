#include "core/engine/transfer_engine.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/engine/harness.h"

namespace kvbridge::engine {
namespace {

using guard::Outcome;
using guard::Reason;

TEST(TransferEngineTest, OptionsAndDependenciesAreChecked) {
  Harness h;
  const TransferEngine::Deps deps{h.pool_.get(), &h.backend_, &h.clock_};
  const auto message = [](const auto& engine) { return std::string(engine.status().message()); };
  EXPECT_EQ(message(TransferEngine::Create({.tile_tokens = 15}, deps)),
            "engine.tile_tokens: expected 16 to 4096, got 15");
  EXPECT_EQ(message(TransferEngine::Create({.tiles_in_flight = 0}, deps)),
            "engine.tiles_in_flight: expected 1 to 64, got 0");
  EXPECT_EQ(message(TransferEngine::Create({}, {h.pool_.get(), nullptr, &h.clock_})),
            "engine: expected a pool, a backend and a clock");
  EXPECT_EQ(message(TransferEngine::Create({.limits = {.max_tokens = 0}}, deps)),
            "limits.max_tokens: expected 1 or more");
}

TEST(TransferEngineTest, PreCheckRefusalsBecomeDecisionsAndReserveNothing) {
  Harness h;
  auto spec = h.Spec(10);
  spec.source.identity.revision = "another";
  const Decision decision = h.BeginRefused(spec);
  EXPECT_EQ(decision.outcome, Outcome::kFallbackReprefill);
  EXPECT_EQ(decision.reason, Reason::kIncompatibleModel);
  EXPECT_EQ(decision.detail, "source.identity.revision: expected r1, got another");
  EXPECT_EQ(decision.route, "small-large");
  EXPECT_EQ(h.engine_->admission().inflight_transfers(), 0);
}

TEST(TransferEngineTest, MeasuringARateRecordsTheFasterOfTwoWarmTiles) {
  Harness h;
  h.backend_.on_map = [&, run = 0](kv::LayerRange, test::FakeBackend::Cancelled) mutable {
    constexpr int kMilliseconds[] = {16, 48, 32};
    h.clock_.Advance(absl::Milliseconds(kMilliseconds[run++ % 3]));
    return absl::OkStatus();
  };
  ASSERT_TRUE(h.engine_->MeasureRate(*h.pin_.resident).ok());
  const auto rate = h.engine_->rates().Get(h.pin_.resident->mapper().digest);
  ASSERT_TRUE(rate.has_value());
  EXPECT_DOUBLE_EQ(rate->seconds_per_unit, 0.032 / 16);
  EXPECT_EQ(h.backend_.live_tiles(), 0);
  h.backend_.on_prepare = [](const device::TileSource&) { return absl::InternalError("broken"); };
  EXPECT_EQ(h.engine_->MeasureRate(*h.pin_.resident).code(), absl::StatusCode::kInternal);
}

TEST(TransferEngineTest, ReservesBuffersAndWorkspaceOfTheTilesInFlight) {
  Harness h;
  const int64_t source_token = h.source_.geometry.token_bytes();
  const int64_t target_token = h.target_.geometry.token_bytes();
  {
    const auto transfer = h.Begin(h.Spec(100));  // two tiles of 16 at a time
    EXPECT_EQ(h.engine_->admission().inflight_bytes(),
              2 * 16 * (100 + source_token + target_token) + 101 * sizeof(int64_t));
  }
  {
    auto spec = h.Spec(5);  // one tile of 5; caches in shared memory
    spec.source_buffered = spec.target_buffered = false;
    const auto transfer = h.Begin(spec);
    EXPECT_EQ(h.engine_->admission().inflight_bytes(), 5 * 100 + 6 * sizeof(int64_t));
  }
  EXPECT_EQ(h.engine_->admission().inflight_bytes(), 0u);
}

TEST(TransferEngineTest, SizesBeyondTheLimitsAreRefusedBeforeAnythingIsAllocated) {
  auto options = Harness::DefaultOptions();
  options.limits.max_tokens = int64_t{1} << 62;
  Harness h(options);
  auto spec = h.Spec(int64_t{1} << 60);  // exabytes: products overflow 64 bits
  EXPECT_EQ(h.BeginRefused(spec).reason, Reason::kBatchLimit);
  spec.tokens = (int64_t{1} << 62) + 1;
  EXPECT_EQ(h.BeginRefused(spec).reason, Reason::kTokenLimit);
}

TEST(TransferEngineTest, NoRoomNowIsOverloadAndPassesWhenTheOtherEnds) {
  auto options = Harness::DefaultOptions();
  options.limits.max_inflight_transfers = 1;
  Harness h(options);
  auto first = h.Begin(h.Spec(10));
  EXPECT_EQ(h.BeginRefused(h.Spec(10)).reason, Reason::kOverload);
  first.reset();
  EXPECT_NE(h.Begin(h.Spec(10)), nullptr);
}

TEST(TransferEngineTest, MeasuredRateDecidesAgainstABudgetItCannotMeet) {
  Harness h;
  auto spec = h.Spec(1000);
  spec.max_latency = absl::Milliseconds(99);
  EXPECT_EQ(h.Begin(spec)->expected_seconds(), std::nullopt);  // unmeasured never refuses

  h.engine_->rates().Record(std::string(64, 'd'), 10, absl::Milliseconds(1), h.clock_.Now());
  const Decision decision = h.BeginRefused(spec);
  EXPECT_EQ(decision.reason, Reason::kLatencyBudget);
  EXPECT_EQ(decision.detail, "max_latency: expected at least 100ms, got 99ms");

  spec.max_latency = absl::Milliseconds(101);
  EXPECT_DOUBLE_EQ(h.Begin(spec)->expected_seconds().value(), 0.1);
}

TEST(TransferEngineTest, RoutesBudgetHoldsWhenTheRequestHasNone) {
  Harness h;
  h.engine_->rates().Record(std::string(64, 'd'), 10, absl::Milliseconds(1), h.clock_.Now());
  h.policy_.max_latency = absl::Milliseconds(50);
  EXPECT_EQ(h.BeginRefused(h.Spec(1000)).reason, Reason::kLatencyBudget);
  EXPECT_EQ(h.Begin(h.Spec(100))->stop_at(), h.clock_.Now() + absl::Milliseconds(50));
}

TEST(TransferEngineTest, StaleRateRefusesNobodySoThatItIsMeasuredAgain) {
  Harness h;
  h.engine_->rates().Record(std::string(64, 'd'), 1, absl::Seconds(100), h.clock_.Now());
  auto spec = h.Spec(10);
  spec.max_latency = absl::Seconds(1);
  EXPECT_EQ(h.BeginRefused(spec).reason, Reason::kLatencyBudget);
  h.clock_.Advance(absl::Seconds(31));
  EXPECT_NE(h.Begin(spec), nullptr);
}

TEST(TransferEngineTest, PositionsAreCheckedAgainstBothModelsBound) {
  Harness h;
  auto spec = h.Spec(10);
  spec.target.rope.max_position = 1000;
  spec.position_start = 989;
  EXPECT_NE(h.Begin(spec), nullptr);  // 11 tokens: the last is at 999
  spec.position_start = 990;
  const Decision decision = h.BeginRefused(spec);
  EXPECT_EQ(decision.reason, Reason::kInvalidRequest);
  EXPECT_THAT(decision.detail, testing::StartsWith("source_selection.positions: "));

  spec.position_list = {0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10};
  EXPECT_EQ(h.BeginRefused(spec).reason, Reason::kInvalidRequest);
  EXPECT_EQ(h.engine_->admission().inflight_transfers(), 0);
}

TEST(TransferEngineTest, NothingButPaddingIsNotWorthIt) {
  Harness h;
  auto spec = h.Spec(3);
  spec.position_list = {-1, -1, -1, 0};
  EXPECT_EQ(h.BeginRefused(spec).reason, Reason::kNotWorthIt);
  spec.position_list = {-1, -1, 0, 1};
  EXPECT_NE(h.Begin(spec), nullptr);
}

}  // namespace
}  // namespace kvbridge::engine
