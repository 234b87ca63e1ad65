// Layer-major sweeps: works of several tiles, group of layers by group of layers.
#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "core/engine/transfer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/engine/harness.h"
#include "tests/support/notification.h"

namespace kvbridge::engine {
namespace {

using guard::Reason;
using ::testing::ElementsAre;

// Submits a work and waits for its on_done.
absl::Status RunToEnd(Transfer& transfer, TileWork work) {
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

// Ten target layers over two source layers, tiles of 16 tokens.
class SweepTest : public ::testing::Test {
 protected:
  guard::TransferSpec Spec(int64_t covered) const {
    guard::TransferSpec spec = h_.Spec(covered);
    spec.source_buffered = spec.target_buffered = false;
    return spec;
  }
  std::shared_ptr<Cache> Source(int64_t tokens) {
    return RandomCache(h_.source_.geometry, tokens, 3);
  }
  std::shared_ptr<Cache> Target(int64_t tokens) {
    return std::make_shared<Cache>(h_.target_.geometry, tokens);
  }
  bool LayersAreDone(const Cache& target, const std::vector<std::byte>& expected,
                     kv::LayerRange layers) {
    const size_t layer = expected.size() / h_.target_.geometry.layers;
    return std::equal(target.bytes.begin() + layers.begin * layer,
                      target.bytes.begin() + layers.end * layer,
                      expected.begin() + layers.begin * layer);
  }

  Harness h_;
};

TEST_F(SweepTest, LayersComeOnceInOrderForAllTokensAndStartWithASingleOne) {
  const auto transfer = h_.Begin(Spec(100));
  EXPECT_GE(transfer->work_tokens(), 100);
  EXPECT_EQ(transfer->works_in_flight(), 1);
  auto source = Source(101);
  const auto target = Target(101);
  const std::vector<std::byte> expected = h_.Expected(*source, 100, 101);
  std::vector<std::string> events;
  TileWork work = h_.Tile({0, 100}, source, target);
  work.on_layers = [&](kv::LayerRange l) {
    events.push_back(std::to_string(l.begin) + "-" + std::to_string(l.end));
    EXPECT_TRUE(LayersAreDone(*target, expected, l)) << l.begin;
  };
  work.on_source_released = [&] {
    events.push_back("released");
    // Whoever lent it may use it for something else now.
    std::fill(source->bytes.begin(), source->bytes.end(), std::byte{0x7f});
  };
  EXPECT_TRUE(RunToEnd(*transfer, std::move(work)).ok());
  EXPECT_THAT(events, ElementsAre("0-1", "released", "1-2", "2-4", "4-8", "8-10"));
  EXPECT_EQ(target->bytes, expected);
  EXPECT_TRUE(transfer->Finish()->applied());
}

TEST_F(SweepTest, AnyCutIntoWorksGivesTheSameBytes) {
  const auto source = Source(101);
  const std::vector<std::byte> expected = h_.Expected(*source, 100, 101);
  for (const std::vector<int64_t>& ends :
       {std::vector<int64_t>{100}, {1, 100}, {16, 100}, {17, 50, 99, 100}, {90, 100}}) {
    const auto transfer = h_.Begin(Spec(100));
    const auto target = Target(101);
    int64_t begin = 0;
    for (const int64_t end : ends) {
      EXPECT_TRUE(RunToEnd(*transfer, h_.Tile({begin, end}, source, target)).ok());
      begin = end;
    }
    EXPECT_TRUE(transfer->Finish()->applied());
    EXPECT_EQ(target->bytes, expected);
  }
}

TEST_F(SweepTest, BuffersOfThePlaneAreNotSwept) {
  const auto transfer = h_.Begin(h_.Spec(100));
  EXPECT_EQ(transfer->work_tokens(), 16);
  EXPECT_EQ(transfer->works_in_flight(), 2);
  EXPECT_EQ(RunToEnd(*transfer, h_.Tile({0, 17}, Source(101), Target(101))).code(),
            absl::StatusCode::kInvalidArgument);
}

// 16 tokens take 1,600 bytes of the fake device.
TEST(SweepRoomTest, SweepsAreAsLongAsTheirRoomAndLeaveHalfOfAllToOthers) {
  TransferEngine::Options options = Harness::DefaultOptions();
  options.sweep_bytes = 4 * 1600 + 1599;
  options.limits.max_inflight_bytes = 20000;
  Harness h(options);
  auto spec = h.Spec(100);
  spec.source_buffered = spec.target_buffered = false;
  const auto first = h.Begin(spec);
  EXPECT_EQ(first->work_tokens(), 64);
  EXPECT_EQ(h.engine_->admission().inflight_bytes(), 4 * 1600u + 101 * sizeof(int64_t));
  const auto second = h.Begin(spec);  // would leave less than half
  EXPECT_EQ(second->work_tokens(), 16);
  EXPECT_EQ(second->works_in_flight(), 2);
  const auto one_tile = h.Begin([&] {
    auto few = spec;
    few.tokens = 17;
    return few;
  }());
  EXPECT_EQ(one_tile->work_tokens(), 16);
}

TEST_F(SweepTest, PaddingAheadIsZeroedLayerByLayer) {
  auto spec = Spec(40);
  spec.position_list.assign(20, -1);
  for (int64_t p = 0; p < 20; ++p) spec.position_list.push_back(p);
  spec.position_list.push_back(20);
  const auto transfer = h_.Begin(spec);
  const auto target = Target(41);
  TileWork work = h_.Tile({0, 40}, Source(41), target);
  std::vector<float> rows(20 * target->view.row());
  work.on_layers = [&](kv::LayerRange l) {
    kv::ReadRows(target->view, l.begin, kv::Component::kValue, {0, 20}, rows.data());
    EXPECT_THAT(rows, ::testing::Each(0.0f));
  };
  EXPECT_TRUE(RunToEnd(*transfer, std::move(work)).ok());
  EXPECT_TRUE(transfer->Finish()->applied());
}

// Tokens of `target` in pages of 16, page i of the selection at physical page 7 - i.
TileWork Paged(TileWork work, const std::vector<int32_t>& pages) {
  work.target.tokens_per_page = 16;
  work.target.pages = pages;
  for (kv::Plane& plane : work.target.planes) plane.page_stride = 16 * plane.token_stride;
  return work;
}

TEST(SweepOrderTest, APageIsDirtyFromItsFirstWriteOn) {
  TransferEngine::Options options = Harness::DefaultOptions();
  options.tiles_in_flight = 1;  // one unit at a time
  Harness h(options);
  auto spec = h.Spec(120);
  spec.source_buffered = spec.target_buffered = false;
  const std::vector<int32_t> pages = {7, 6, 5, 4, 3, 2, 1, 0};
  for (const int fail_at : {1, 3, 8, 20}) {
    std::atomic<int> calls{0};
    h.backend_.on_map = [&](kv::LayerRange, auto) {
      return ++calls == fail_at ? absl::InternalError("lost") : absl::OkStatus();
    };
    const auto transfer = h.Begin(spec);
    const auto source = RandomCache(h.source_.geometry, 128, 3);
    const auto target = std::make_shared<Cache>(h.target_.geometry, 128);
    EXPECT_EQ(RunToEnd(*transfer, Paged(h.Tile({0, 120}, source, target), pages)).code(),
              absl::StatusCode::kInternal);
    const Decision d = transfer->Finish().value();
    EXPECT_EQ(d.reason, Reason::kDeviceError);
    // The first group visits the tiles one by one; from the second on all are dirty.
    const size_t begun = std::min(fail_at, 8);
    EXPECT_EQ(d.dirty_pages.size(), begun);
    EXPECT_EQ(d.dirty_pages.front(), 8 - static_cast<int>(begun));
  }
}

TEST_F(SweepTest, ANonFiniteTokenStopsTheSweepBeforeItsLayersArePublished) {
  const auto transfer = h_.Begin(Spec(100));
  const auto source = Source(101);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(source->view.Row(1, kv::Component::kKey, 99), &nan, sizeof(nan));
  TileWork work = h_.Tile({0, 100}, source, Target(101));
  std::vector<int32_t> published;
  work.on_layers = [&](kv::LayerRange l) { published.push_back(l.begin); };
  EXPECT_EQ(RunToEnd(*transfer, std::move(work)).code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(published, ::testing::Each(0));  // source layer 1 feeds target layer 1
  EXPECT_EQ(transfer->Finish()->reason, Reason::kNonFinite);
}

TEST_F(SweepTest, CancelledAnywhereItLeavesNothing) {
  const auto source = Source(101);
  for (int cancel_at = 1; cancel_at <= 7 * 5; ++cancel_at) {
    const auto transfer = h_.Begin(Spec(100));
    std::atomic<int> calls{0};
    h_.backend_.on_map = [&](kv::LayerRange, auto) {
      if (++calls == cancel_at) {
        transfer->Cancel({guard::Outcome::kFallbackReprefill, Reason::kCancelled, "gone"});
      }
      return absl::OkStatus();
    };
    TileWork work = h_.Tile({0, 100}, source, Target(101));
    int released = 0;
    work.on_source_released = [&] { ++released; };
    EXPECT_EQ(RunToEnd(*transfer, std::move(work)).code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(released, 1);
    EXPECT_EQ(transfer->Finish()->reason, Reason::kCancelled);
    EXPECT_GE(calls, cancel_at);
    EXPECT_LE(calls, cancel_at + 1);  // the other lane may have been past its own check
  }
  EXPECT_EQ(h_.backend_.live_tiles(), 0);
  EXPECT_EQ(source.use_count(), 1);
  EXPECT_EQ(h_.engine_->admission().inflight_bytes(), 0u);
}

}  // namespace
}  // namespace kvbridge::engine
