#include "core/engine/transfer.h"

#include <atomic>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/engine/harness.h"
#include "tests/support/notification.h"

namespace kvbridge::engine {
namespace {

using guard::Outcome;
using guard::Reason;
using guard::Refusal;
using ::testing::ElementsAre;

Refusal Gone() { return {Outcome::kFallbackReprefill, Reason::kCancelled, "the caller left"}; }

// Submits one tile and waits for its on_done.
absl::Status RunTile(Transfer& transfer, TileWork work) {
  test::Notification done;
  absl::Status result;
  work.on_done = [&](const absl::Status& status) {
    result = status;
    done.Notify();
  };
  if (absl::Status status = transfer.SubmitTile(std::move(work)); !status.ok()) return status;
  done.WaitForNotification();
  return result;
}

class TransferTest : public ::testing::Test {
 protected:
  std::shared_ptr<Cache> Source(int64_t tokens) {
    return RandomCache(h_.source_.geometry, tokens, 1);
  }
  std::shared_ptr<Cache> Target(int64_t tokens) {
    return std::make_shared<Cache>(h_.target_.geometry, tokens);
  }
  // One tile of 8 tokens, the whole transfer.
  Decision RunOne() {
    const auto transfer = h_.Begin(h_.Spec(8));
    status_ = RunTile(*transfer, h_.Tile({0, 8}, Source(9), Target(9)));
    return transfer->Finish().value();
  }

  Harness h_;
  absl::Status status_;
};

TEST_F(TransferTest, AppliedDecisionSaysAllThatACallerNeeds) {
  h_.policy_.shadow_rate = 1;
  auto spec = h_.Spec(20);
  const auto transfer = h_.Begin(spec);
  const auto source = Source(21), target = Target(21);
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({16, 20}, source, target)).ok());  // any order
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({0, 16}, source, target)).ok());
  transfer->AddStage(Stage::kEgress, absl::Seconds(2));
  transfer->AddBytes(10, 20);

  const Decision d = transfer->Finish().value();
  EXPECT_EQ(d.outcome, Outcome::kApplied);
  EXPECT_EQ(d.reason, Reason::kNone);
  EXPECT_EQ(d.covered_tokens, 20);
  EXPECT_EQ(d.artifact_digest, std::string(64, 'd'));
  EXPECT_EQ(d.hops, 1);
  EXPECT_TRUE(d.approximate);
  EXPECT_EQ(d.salt, CacheSalt(d.artifact_digest, h_.policy_.salt, 1).value());
  EXPECT_EQ(d.stages[static_cast<size_t>(Stage::kEgress)], absl::Seconds(2));
  EXPECT_EQ(d.bytes_in, 10);
  EXPECT_EQ(d.bytes_out, 20);
  EXPECT_GT(d.max_abs, 0.9f);
  EXPECT_TRUE(d.shadow_selected);
  EXPECT_EQ(d.token_ids_sha256, std::string(64, 'a'));
  EXPECT_EQ(d.route, "small-large");
  EXPECT_THAT(d.dirty_pages, ::testing::IsEmpty());
  EXPECT_EQ(target->bytes, h_.Expected(*source, 20, 21));
}

TEST_F(TransferTest, StageTimesAreTheClocks) {
  h_.backend_.on_prepare = [&](const auto&) {
    h_.clock_.Advance(absl::Seconds(3));
    return absl::OkStatus();
  };
  h_.backend_.on_map = [&](kv::LayerRange, auto) {
    h_.clock_.Advance(absl::Seconds(5));
    return absl::OkStatus();
  };
  const Decision d = RunOne();
  EXPECT_EQ(d.stages[static_cast<size_t>(Stage::kStripRope)], absl::Seconds(3));
  EXPECT_EQ(d.stages[static_cast<size_t>(Stage::kMap)], absl::Seconds(15));  // 10 layers by 4
  EXPECT_EQ(d.stages[static_cast<size_t>(Stage::kQueue)], absl::ZeroDuration());
  EXPECT_DOUBLE_EQ(h_.engine_->rates().Get(d.artifact_digest)->seconds_per_unit, 18.0 / 8);
}

TEST_F(TransferTest, CallbacksComeInOrderAndLayersInGroups) {
  const auto transfer = h_.Begin(h_.Spec(8));
  auto source = Source(9);
  std::weak_ptr<Cache> source_alive = source, target_alive;
  TileWork work = h_.Tile({0, 8}, source, Target(9));
  target_alive = std::static_pointer_cast<Cache>(std::const_pointer_cast<void>(work.target_owner));
  source.reset();
  std::vector<std::string> events;
  test::Notification done;
  work.on_source_released = [&] {
    events.push_back(source_alive.expired() ? "released" : "still held");
  };
  work.on_layers = [&](kv::LayerRange l) {
    events.push_back(std::to_string(l.begin) + "-" + std::to_string(l.end));
  };
  work.on_done = [&](const absl::Status& status) {
    events.push_back(status.ok() && target_alive.expired() ? "done" : "still held");
    done.Notify();
  };
  ASSERT_TRUE(transfer->SubmitTile(std::move(work)).ok());
  done.WaitForNotification();
  EXPECT_THAT(events, ElementsAre("released", "0-4", "4-8", "8-10", "done"));
}

TEST_F(TransferTest, GroupThatFailsTheGuardIsNeverPublished) {
  const auto transfer = h_.Begin(h_.Spec(8));
  auto source = Source(9);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Source layer 1 feeds every odd target layer; the first group is spoilt already.
  std::memcpy(source->view.Row(1, kv::Component::kValue, 7), &nan, sizeof(nan));
  TileWork work = h_.Tile({0, 8}, source, Target(9));
  int published = 0;
  work.on_layers = [&](kv::LayerRange) { ++published; };
  EXPECT_EQ(RunTile(*transfer, std::move(work)).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(published, 0);
  const Decision d = transfer->Finish().value();
  EXPECT_EQ(d.reason, Reason::kNonFinite);
  EXPECT_EQ(d.covered_tokens, 0);
  EXPECT_FALSE(d.approximate);
  EXPECT_EQ(d.salt, "");
}

TEST_F(TransferTest, MagnitudeBeyondTheBoundFallsBackAndIsReported) {
  h_.policy_.max_abs = 0.5;
  const Decision d = RunOne();
  EXPECT_EQ(d.reason, Reason::kMagnitudeBound);
  EXPECT_GT(d.max_abs, 0.5f);
}

TEST_F(TransferTest, DeviceErrorsBecomeReasons) {
  const std::pair<absl::Status, Reason> cases[] = {
      {absl::ResourceExhaustedError("no room"), Reason::kDeviceOom},
      {absl::InternalError("lost"), Reason::kDeviceError},
      {absl::UnavailableError("lost"), Reason::kDeviceError},
      {absl::InvalidArgumentError("ours"), Reason::kInternal},
      {absl::CancelledError("nobody asked"), Reason::kInternal}};
  for (const auto& [error, reason] : cases) {
    h_.backend_.on_map = [error = error](kv::LayerRange l, auto) {
      return l.begin == 4 ? error : absl::OkStatus();
    };
    EXPECT_EQ(RunOne().reason, reason) << error;
    EXPECT_EQ(status_, error);
  }
  h_.backend_.on_map = nullptr;
  h_.backend_.on_prepare = [](const auto&) { return absl::ResourceExhaustedError("no room"); };
  EXPECT_EQ(RunOne().reason, Reason::kDeviceOom);
  EXPECT_EQ(h_.backend_.live_tiles(), 0);
}

TEST_F(TransferTest, SourceIsReleasedOnceEvenWhenTheTileFails) {
  h_.backend_.on_prepare = [](const auto&) { return absl::InternalError("lost"); };
  const auto transfer = h_.Begin(h_.Spec(8));
  TileWork work = h_.Tile({0, 8}, Source(9), Target(9));
  int released = 0;
  work.on_source_released = [&] { ++released; };
  EXPECT_EQ(RunTile(*transfer, std::move(work)).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(released, 1);
}

TEST_F(TransferTest, FirstRefusalWinsAndNothingOverwritesIt) {
  const auto transfer = h_.Begin(h_.Spec(8));
  EXPECT_TRUE(transfer->Cancel({Outcome::kFallbackReprefill, Reason::kTransport, "crc"}));
  EXPECT_FALSE(transfer->Cancel(Gone()));
  EXPECT_TRUE(transfer->cancelled());
  EXPECT_EQ(transfer->SubmitTile(h_.Tile({0, 8}, Source(9), Target(9))).code(),
            absl::StatusCode::kCancelled);
  const Decision d = transfer->Finish().value();
  EXPECT_EQ(d.reason, Reason::kTransport);
  EXPECT_EQ(d.detail, "crc");
  EXPECT_FALSE(transfer->Cancel(Gone()));
  EXPECT_FALSE(transfer->Finish().has_value());
}

TEST_F(TransferTest, TokensThatNeverCameAreShapeMismatchByName) {
  const auto transfer = h_.Begin(h_.Spec(40));
  const auto source = Source(41), target = Target(41);
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({0, 16}, source, target)).ok());
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({32, 40}, source, target)).ok());
  const Decision d = transfer->Finish().value();
  EXPECT_EQ(d.reason, Reason::kShapeMismatch);
  EXPECT_EQ(d.detail, "source tokens: expected [0, 40), token 16 never came");
}

TEST_F(TransferTest, TilesThatMakeNoSenseAreRefusedAtTheDoor) {
  const auto transfer = h_.Begin(h_.Spec(40));
  const auto source = Source(41), target = Target(41);
  const auto code = [&](TileWork work) { return RunTile(*transfer, std::move(work)).code(); };
  for (kv::TokenRange bad :
       {kv::TokenRange{-1, 3}, {3, 3}, {5, 3}, {0, 17}, {39, 41}, {1 << 20, (1 << 20) + 1}}) {
    EXPECT_EQ(code(h_.Tile(bad, source, target)), absl::StatusCode::kInvalidArgument) << bad.begin;
  }
  TileWork outside = h_.Tile({0, 16}, source, target);
  outside.source_begin = 26;
  EXPECT_EQ(code(outside), absl::StatusCode::kInvalidArgument);
  outside.source_begin = 0;
  outside.target_begin = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(code(outside), absl::StatusCode::kInvalidArgument);
  TileWork swapped = h_.Tile({0, 16}, target, source);
  EXPECT_EQ(code(swapped), absl::StatusCode::kInvalidArgument);

  EXPECT_TRUE(RunTile(*transfer, h_.Tile({0, 16}, source, target)).ok());
  EXPECT_EQ(code(h_.Tile({15, 20}, source, target)), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({16, 20}, source, target)).ok());
}

TEST_F(TransferTest, ShadowMapsAndChecksButPublishesNothing) {
  h_.policy_.stage = guard::RouteStage::kShadow;
  const auto transfer = h_.Begin(h_.Spec(8));
  EXPECT_FALSE(transfer->publish());
  TileWork work = h_.Tile({0, 8}, Source(9), Target(9));
  work.on_layers = [](kv::LayerRange) { ADD_FAILURE() << "published"; };
  EXPECT_TRUE(RunTile(*transfer, std::move(work)).ok());
  const Decision d = transfer->Finish().value();
  EXPECT_EQ(d.outcome, Outcome::kFallbackReprefill);
  EXPECT_EQ(d.reason, Reason::kRouteDisabled);
  EXPECT_GT(d.max_abs, 0);
}

TEST_F(TransferTest, DeadlineAndBudgetStopBetweenLayerGroups) {
  for (const bool deadline : {true, false}) {
    auto spec = h_.Spec(8);
    if (deadline) {
      spec.deadline = h_.clock_.Now() + absl::Seconds(1);
    } else {
      spec.max_latency = absl::Seconds(1);
    }
    const auto transfer = h_.Begin(spec);
    int published = 0;
    TileWork work = h_.Tile({0, 8}, Source(9), Target(9));
    work.on_layers = [&](kv::LayerRange) {
      ++published;
      h_.clock_.Advance(absl::Seconds(1));
    };
    EXPECT_EQ(RunTile(*transfer, std::move(work)).code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(published, 1);
    EXPECT_EQ(transfer->Finish()->reason,
              deadline ? Reason::kDeadlineExceeded : Reason::kLatencyBudget);
  }
}

TEST_F(TransferTest, BudgetThatRanOutAfterTheLastTileIsStillABudget) {
  auto spec = h_.Spec(8);
  spec.max_latency = absl::Seconds(1);
  const auto transfer = h_.Begin(spec);
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({0, 8}, Source(9), Target(9))).ok());
  h_.clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(transfer->Finish()->reason, Reason::kLatencyBudget);
}

// A timeout must not free what a worker still writes to (faults.md B42).
TEST_F(TransferTest, MemoryMapperAndRoomAreHeldUntilTheWorkerHasLeft) {
  test::Notification entered, leave, done;
  h_.backend_.on_map = [&](kv::LayerRange, auto cancelled) {
    entered.Notify();
    leave.WaitForNotification();
    return cancelled() ? absl::CancelledError("stopped") : absl::OkStatus();
  };
  auto spec = h_.Spec(8);
  spec.deadline = h_.clock_.Now() + absl::Seconds(1);
  auto transfer = h_.Begin(spec);
  auto target = Target(9);
  std::weak_ptr<Cache> target_alive = target;
  TileWork work = h_.Tile({0, 8}, Source(9), target);
  work.on_done = [&](const absl::Status&) { done.Notify(); };
  ASSERT_TRUE(transfer->SubmitTile(std::move(work)).ok());
  entered.WaitForNotification();

  h_.clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(transfer->Finish()->reason, Reason::kDeadlineExceeded);  // waits for nobody
  transfer.reset();
  target.reset();
  h_.pin_.resident.reset();
  EXPECT_FALSE(target_alive.expired());
  EXPECT_EQ(h_.backend_.live_mappers(), 1);
  EXPECT_EQ(h_.engine_->admission().inflight_transfers(), 1);

  leave.Notify();
  done.WaitForNotification();
  EXPECT_TRUE(target_alive.expired());
  EXPECT_EQ(h_.backend_.live_mappers(), 0);
  EXPECT_EQ(h_.backend_.live_tiles(), 0);
  EXPECT_EQ(h_.engine_->admission().inflight_bytes(), 0u);
}

TEST_F(TransferTest, MoreTilesThanWereReservedAreRefused) {
  test::Notification leave;
  h_.backend_.on_prepare = [&](const auto&) {
    leave.WaitForNotification();
    return absl::OkStatus();
  };
  const auto transfer = h_.Begin(h_.Spec(48));
  const auto source = Source(49), target = Target(49);
  EXPECT_TRUE(transfer->SubmitTile(h_.Tile({0, 16}, source, target)).ok());
  EXPECT_TRUE(transfer->SubmitTile(h_.Tile({16, 32}, source, target)).ok());
  EXPECT_EQ(transfer->SubmitTile(h_.Tile({32, 48}, source, target)).code(),
            absl::StatusCode::kFailedPrecondition);
  const Decision d = transfer->Finish().value();
  EXPECT_EQ(d.reason, Reason::kShapeMismatch);
  leave.Notify();
  h_.pool_->Stop();
}

TEST(TransferQueueTest, FullWorkerQueueIsOverload) {
  Harness h(Harness::DefaultOptions(), /*threads=*/1, /*max_jobs=*/1);
  test::Notification entered, leave;
  ASSERT_TRUE(h.pool_
                  ->Submit([&] {
                    entered.Notify();
                    leave.WaitForNotification();
                  })
                  .ok());
  entered.WaitForNotification();
  ASSERT_TRUE(h.pool_->Submit([] {}).ok());
  const auto transfer = h.Begin(h.Spec(8));
  const auto source = RandomCache(h.source_.geometry, 9, 1);
  const auto target = std::make_shared<Cache>(h.target_.geometry, 9);
  EXPECT_EQ(transfer->SubmitTile(h.Tile({0, 8}, source, target)).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(source.use_count(), 1);
  EXPECT_EQ(transfer->Finish()->reason, Reason::kOverload);
  leave.Notify();
}

TEST_F(TransferTest, PaddingIsNotMappedAndItsSlotsAreZero) {
  auto spec = h_.Spec(20);
  spec.position_list.assign(17, -1);  // the whole first tile and one token of the second
  for (int64_t p = 0; p < 4; ++p) spec.position_list.push_back(p);
  std::atomic<int64_t> prepared{0};
  h_.backend_.on_prepare = [&](const device::TileSource& source) {
    prepared += source.tokens.size();
    EXPECT_EQ(source.tokens, (kv::TokenRange{17, 20}));
    EXPECT_THAT(source.positions, ElementsAre(0, 1, 2));
    return absl::OkStatus();
  };
  const auto transfer = h_.Begin(spec);
  const auto source = Source(21), target = Target(21);
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({0, 16}, source, target)).ok());
  EXPECT_TRUE(RunTile(*transfer, h_.Tile({16, 20}, source, target)).ok());
  EXPECT_TRUE(transfer->Finish()->applied());
  EXPECT_EQ(prepared, 3);
  std::vector<float> rows(17 * target->view.row());
  for (int32_t layer = 0; layer < 10; ++layer) {
    kv::ReadRows(target->view, layer, kv::Component::kKey, {0, 17}, rows.data());
    EXPECT_THAT(rows, ::testing::Each(0.0f)) << layer;
  }
}

TEST_F(TransferTest, FailedTransferListsThePagesItMayHaveWritten) {
  const auto transfer = h_.Begin(h_.Spec(24));
  const auto source = Source(25);
  const auto target = Target(32);
  const std::vector<int32_t> pages = {5, 0, 7, 2};  // of 4 tokens; the buffer holds 8 pages
  TileWork work = h_.Tile({4, 12}, source, target);
  work.target.tokens_per_page = 4;
  work.target.pages = pages;
  work.target.tokens = 16;
  for (kv::Plane& plane : work.target.planes) plane.page_stride = 4 * plane.token_stride;
  EXPECT_TRUE(RunTile(*transfer, std::move(work)).ok());
  EXPECT_THAT(transfer->Finish()->dirty_pages, ElementsAre(0, 7));
}

// Cancel, deadline and finish race from every side: one decision, and the first refusal's reason.
TEST_F(TransferTest, ExactlyOneDecisionWhateverRaces) {
  constexpr int kRounds = 200;
  const auto source = Source(9);
  for (int round = 0; round < kRounds; ++round) {
    auto spec = h_.Spec(8);
    spec.deadline = h_.clock_.Now() + absl::Seconds(1);
    const auto transfer = h_.Begin(spec);
    test::Notification tile_done;
    TileWork work = h_.Tile({0, 8}, source, Target(9));
    work.on_done = [&](const absl::Status&) { tile_done.Notify(); };
    ASSERT_TRUE(transfer->SubmitTile(std::move(work)).ok());

    std::atomic<int> decisions{0}, wins{0};
    std::atomic<Reason> reason{Reason::kNone};
    auto finish = [&] {
      if (auto d = transfer->Finish()) {
        ++decisions;
        reason = d->reason;
      }
    };
    std::vector<std::thread> threads;
    threads.emplace_back(finish);
    threads.emplace_back(finish);
    threads.emplace_back([&] { wins += transfer->Cancel(Gone()); });
    threads.emplace_back([&] {
      h_.clock_.Advance(absl::Seconds(1));
      transfer->cancelled();
    });
    for (auto& thread : threads) thread.join();
    tile_done.WaitForNotification();
    EXPECT_EQ(decisions, 1);
    EXPECT_EQ(wins, reason == Reason::kCancelled ? 1 : 0) << Name(reason.load());
    EXPECT_FALSE(transfer->Finish().has_value());
  }
  EXPECT_EQ(h_.engine_->admission().inflight_bytes(), 0u);
}

// After a burst of cancelled streams nothing may be left behind (faults.md B39).
TEST_F(TransferTest, SixtyFourCancelledAtRandomPointsLeaveNothing) {
  constexpr uint32_t kSeed = 39;
  std::mt19937 random(kSeed);
  const auto source = Source(65);
  for (int i = 0; i < 64; ++i) {
    const int cancel_at = static_cast<int>(random() % 40);
    const auto transfer = h_.Begin(h_.Spec(64));
    std::atomic<int> polls{0};
    h_.backend_.on_map = [&](kv::LayerRange, auto) {
      if (++polls == cancel_at) transfer->Cancel(Gone());
      return absl::OkStatus();
    };
    for (int64_t t = 0; t < 64; t += 16) {
      if (!RunTile(*transfer, h_.Tile({t, t + 16}, source, Target(65))).ok()) break;
    }
    const Decision d = transfer->Finish().value();
    // 4 tiles of 3 groups.
    EXPECT_EQ(d.reason, cancel_at >= 1 && cancel_at <= 12 ? Reason::kCancelled : Reason::kNone);
  }
  h_.backend_.on_map = nullptr;
  EXPECT_EQ(h_.engine_->admission().inflight_bytes(), 0u);
  EXPECT_EQ(h_.engine_->admission().inflight_transfers(), 0);
  EXPECT_EQ(h_.backend_.live_tiles(), 0);
  EXPECT_EQ(source.use_count(), 1);
  EXPECT_EQ(h_.pool_->threads(), 4);
  EXPECT_TRUE(RunOne().applied());
}

}  // namespace
}  // namespace kvbridge::engine
