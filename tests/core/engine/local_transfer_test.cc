#include "core/engine/local_transfer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/device/copy_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/engine/harness.h"

namespace kvbridge::engine {
namespace {

using guard::Reason;

TEST(LocalTransferTest, MapsTheCoveredTokensAndTouchesNoOthers) {
  Harness h;
  const auto source = RandomCache(h.source_.geometry, 101, 7);
  Cache target(h.target_.geometry, 101);
  const Decision d = h.RunLocal(h.Spec(100), *source, target);
  EXPECT_TRUE(d.applied()) << d.detail;
  EXPECT_EQ(d.covered_tokens, 100);
  EXPECT_EQ(target.bytes, h.Expected(*source, 100, 101));  // token 100 is 0xff in both
  EXPECT_EQ(h.engine_->admission().inflight_transfers(), 0);
}

// 17 tokens in pages of 16: slots 17..31 must be zero, not what was there (faults.md B14, B18).
TEST(LocalTransferTest, ZeroesTheSlotsPastTheLastToken) {
  Harness h;
  const auto source = RandomCache(h.source_.geometry, 18, 7);
  Cache target(h.target_.geometry, 32);
  const std::vector<int32_t> pages = {1, 0};
  target.view.tokens_per_page = 16;
  target.view.pages = pages;
  target.view.tokens = 18;
  for (kv::Plane& plane : target.view.planes) plane.page_stride = 16 * plane.token_stride;
  const Decision d = h.RunLocal(h.Spec(17), *source, target);
  EXPECT_EQ(d.covered_tokens, 17);

  Cache dense(h.target_.geometry, 18);
  dense.bytes = h.Expected(*source, 17, 18);
  const size_t token = target.view.row() * sizeof(float);
  for (int32_t layer = 0; layer < 10; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      const std::byte* expected =
          dense.bytes.data() + (2 * layer + static_cast<int>(c)) * 18 * token;
      for (int64_t t = 0; t < 17; ++t) {
        EXPECT_TRUE(std::equal(expected + t * token, expected + (t + 1) * token,
                               target.view.Row(layer, c, t)));
      }
      const std::byte* tail = target.view.Row(layer, c, 17);
      EXPECT_TRUE(
          std::all_of(tail, tail + 15 * token, [](std::byte b) { return b == std::byte{}; }));
    }
  }
}

TEST(LocalTransferTest, AppendingLeavesThePrefixAloneAndGivesTheBytesOfOneTransfer) {
  Harness h;
  const auto source = RandomCache(h.source_.geometry, 101, 7);
  Cache target(h.target_.geometry, 101);
  ASSERT_TRUE(h.RunLocal(h.Spec(40), *source, target).applied());
  EXPECT_EQ(target.bytes, h.Expected(*source, 40, 101));
  guard::TransferSpec more = h.Spec(100);
  more.first_token = 40;
  more.artifact_digest = h.pin_.resident->mapper().digest;
  auto rest = RandomCache(h.source_.geometry, 101, 8);  // before token 40 nothing is read
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      std::memcpy(rest->view.Row(layer, c, 40), source->view.Row(layer, c, 40),
                  61 * source->view.planes[0].token_stride);
    }
  }
  const Decision d = h.RunLocal(more, *rest, target);
  EXPECT_TRUE(d.applied()) << d.detail;
  EXPECT_EQ(d.covered_tokens, 100);
  EXPECT_EQ(target.bytes, h.Expected(*source, 100, 101));
}

// What another kvbridged has mapped goes through everything but the map.
TEST(LocalTransferTest, MovesACacheThatWasMappedElsewhere) {
  Harness h;
  const auto source = RandomCache(h.target_.geometry, 101, 7);
  guard::TransferSpec spec = h.Spec(100);
  spec.source = h.target_;
  spec.artifact_digest = std::string(64, 'd');
  const ArtifactPin mover{
      .resident = std::make_shared<device::CopyMapper>(spec.artifact_digest, h.target_),
      .proven = true,
      .moves = true};
  Cache target(h.target_.geometry, 101);
  const Decision d = RunLocal(*h.engine_, spec, h.policy_, mover, source->view, target.view);
  EXPECT_TRUE(d.applied()) << d.detail;
  EXPECT_EQ(d.artifact_digest, spec.artifact_digest);
  for (int32_t layer = 0; layer < h.target_.geometry.layers; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      const size_t row = source->view.planes[0].token_stride;
      EXPECT_EQ(std::memcmp(target.view.Row(layer, c, 0), source->view.Row(layer, c, 0), 100 * row),
                0);
      const std::byte* rest = target.view.Row(layer, c, 100);
      EXPECT_TRUE(std::all_of(rest, rest + row, [](std::byte b) { return b == std::byte{0xff}; }));
    }
  }
  EXPECT_FALSE(h.engine_->rates().Get(spec.artifact_digest).has_value())
      << "moving says nothing of how fast this artifact maps";
}

TEST(LocalTransferTest, FailureAfterWritesLeavesZerosAndAReason) {
  Harness h;
  std::atomic<int> groups{0};
  h.backend_.on_map = [&](kv::LayerRange, auto) {
    return ++groups == 7 ? absl::InternalError("device lost") : absl::OkStatus();
  };
  const auto source = RandomCache(h.source_.geometry, 101, 7);
  Cache target(h.target_.geometry, 101);
  const Decision d = h.RunLocal(h.Spec(100), *source, target);
  EXPECT_EQ(d.reason, Reason::kDeviceError);
  EXPECT_EQ(d.detail, "device lost");
  EXPECT_EQ(d.covered_tokens, 0);
  // Tiles of 16 from the front were begun; what was written is zero, the rest untouched.
  const std::byte* first = target.view.Row(0, kv::Component::kKey, 0);
  EXPECT_EQ(*first, std::byte{});
  for (const std::byte b : target.bytes) EXPECT_TRUE(b == std::byte{} || b == std::byte{0xff});
}

TEST(LocalTransferTest, ViewsShorterThanTheSelectionAreShapeMismatch) {
  Harness h;
  const auto source = RandomCache(h.source_.geometry, 50, 7);
  Cache target(h.target_.geometry, 101);
  const Decision d = h.RunLocal(h.Spec(100), *source, target);
  EXPECT_EQ(d.reason, Reason::kShapeMismatch);
}

TEST(LocalTransferTest, RefusedRequestsLeaveTheTargetAlone) {
  Harness h;
  auto spec = h.Spec(100);
  spec.hops = 1;
  const auto source = RandomCache(h.source_.geometry, 101, 7);
  Cache target(h.target_.geometry, 101);
  const auto before = target.bytes;
  EXPECT_EQ(h.RunLocal(spec, *source, target).reason, Reason::kAppGate);
  EXPECT_EQ(target.bytes, before);
}

TEST(LocalTransferTest, SameBytesAloneAndBesideThirtyOneOthers) {
  Harness h;
  const auto source = RandomCache(h.source_.geometry, 101, 7);
  Cache alone(h.target_.geometry, 101);
  ASSERT_TRUE(h.RunLocal(h.Spec(100), *source, alone).applied());

  std::vector<std::thread> others;
  for (int i = 0; i < 31; ++i) {
    others.emplace_back([&, i] {
      const auto other = RandomCache(h.source_.geometry, 20 + 7 * i, 100 + i);
      Cache target(h.target_.geometry, 20 + 7 * i);
      EXPECT_TRUE(h.RunLocal(h.Spec(19 + 7 * i), *other, target).applied());
      EXPECT_EQ(target.bytes, h.Expected(*other, 19 + 7 * i, 20 + 7 * i));
    });
  }
  Cache beside(h.target_.geometry, 101);
  EXPECT_TRUE(h.RunLocal(h.Spec(100), *source, beside).applied());
  for (auto& other : others) other.join();
  EXPECT_EQ(beside.bytes, alone.bytes);
  EXPECT_EQ(h.engine_->admission().inflight_bytes(), 0u);
}

}  // namespace
}  // namespace kvbridge::engine
