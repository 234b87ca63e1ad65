// Who runs when, and with whom, on one worker: what is queued while it is held up is all there when
// it comes back.
#include "core/engine/dispatcher.h"

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/engine/harness.h"
#include "tests/support/notification.h"

namespace kvbridge::engine {
namespace {

using guard::Reason;
using ::testing::ElementsAre;

// Tiles of 16 tokens; ten target layers go by three passes.
class DispatcherTest : public ::testing::Test {
 protected:
  struct Request {
    std::shared_ptr<Transfer> transfer;
    std::shared_ptr<Cache> source, target;
    std::vector<std::byte> expected;
    std::unique_ptr<test::Notification> done = std::make_unique<test::Notification>();
    absl::Status status;
  };

  void HoldWorker() {
    held_ = std::make_unique<test::Notification>();
    ASSERT_TRUE(h_.pool_->Submit([this] { held_->WaitForNotification(); }).ok());
  }
  void LetGo() { held_->Notify(); }

  Request& Add(int64_t tokens, const std::string& tenant = "") {
    Request& request = *requests_.emplace_back(std::make_unique<Request>());
    guard::TransferSpec spec = h_.Spec(tokens);
    spec.tenant = tenant;
    spec.source_buffered = spec.target_buffered = false;
    request.transfer = h_.Begin(spec);
    request.source = RandomCache(h_.source_.geometry, tokens + 1, requests_.size());
    request.target = std::make_shared<Cache>(h_.target_.geometry, tokens + 1);
    request.expected = h_.Expected(*request.source, tokens, tokens + 1);
    return request;
  }
  void Submit(Request& request, const std::string& name = "") {
    TileWork work =
        h_.Tile({0, request.transfer->covered_tokens()}, request.source, request.target);
    work.on_done = [this, &request, name](const absl::Status& status) {
      request.status = status;
      ended_.push_back(name);
      request.done->Notify();
    };
    ASSERT_TRUE(request.transfer->SubmitTile(std::move(work)).ok());
  }
  void ExpectAlone(Request& request) {
    request.done->WaitForNotification();
    EXPECT_TRUE(request.status.ok()) << request.status;
    EXPECT_TRUE(request.transfer->Finish()->applied());
    EXPECT_EQ(request.target->bytes, request.expected);
  }

  Harness h_{Harness::DefaultOptions(), /*threads=*/1};
  std::unique_ptr<test::Notification> held_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<std::string> ended_;  // by the one worker, in order
};

TEST_F(DispatcherTest, SmallWorksOfOneMapperShareItsPasses) {
  std::vector<size_t> passes;
  h_.backend_.on_pass = [&](size_t parts) { passes.push_back(parts); };
  HoldWorker();
  for (const int64_t tokens : {4, 5, 6, 7}) Submit(Add(tokens));
  LetGo();
  for (auto& request : requests_) ExpectAlone(*request);
  // 4, 5 and 6 tokens make a tile, the 7 follow by themselves.
  EXPECT_THAT(passes, ElementsAre(3, 3, 3, 1, 1, 1));
  EXPECT_EQ(h_.engine_->queued_units(), 0u);
}

TEST_F(DispatcherTest, WorksOfDifferentMappersDoNotShare) {
  std::vector<size_t> passes;
  h_.backend_.on_pass = [&](size_t parts) { passes.push_back(parts); };
  HoldWorker();
  Submit(Add(4));
  h_.pin_.resident =
      h_.backend_
          .MakeResident(std::make_shared<mapper::Mapper>(test::FakeMapper(h_.source_, h_.target_)),
                        device::Precision::kF32, {})
          .value();
  Submit(Add(4));
  LetGo();
  for (auto& request : requests_) ExpectAlone(*request);
  EXPECT_THAT(passes, ::testing::Each(1u));
}

TEST_F(DispatcherTest, WhatSharesAPassFailsByItself) {
  HoldWorker();
  for (const int64_t tokens : {4, 5, 6}) Add(tokens);
  Request& spoilt = *requests_[1];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(spoilt.source->view.Row(1, kv::Component::kKey, 2), &nan, sizeof(nan));
  for (auto& request : requests_) Submit(*request);
  LetGo();
  ExpectAlone(*requests_[0]);
  ExpectAlone(*requests_[2]);
  spoilt.done->WaitForNotification();
  EXPECT_EQ(spoilt.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(spoilt.transfer->Finish()->reason, Reason::kNonFinite);
}

TEST_F(DispatcherTest, OneThatIsCancelledLeavesTheOthersOfItsPass) {
  std::atomic<int> calls{0};
  HoldWorker();
  for (const int64_t tokens : {4, 5, 6}) Add(tokens);
  h_.backend_.on_map = [&](kv::LayerRange, auto) {
    if (++calls == 5) {  // in the second pass
      requests_[1]->transfer->Cancel(
          {guard::Outcome::kFallbackReprefill, Reason::kCancelled, "the caller left"});
    }
    return absl::OkStatus();
  };
  for (auto& request : requests_) Submit(*request);
  LetGo();
  ExpectAlone(*requests_[0]);
  ExpectAlone(*requests_[2]);
  requests_[1]->done->WaitForNotification();
  EXPECT_EQ(requests_[1]->transfer->Finish()->reason, Reason::kCancelled);
}

TEST_F(DispatcherTest, AShortTransferOvertakesALongOne) {
  Request& long_one = Add(160);
  Request& short_one = Add(8);
  std::atomic<int> calls{0};
  h_.backend_.on_map = [&](kv::LayerRange, auto) {
    if (++calls == 3) Submit(short_one, "short");
    return absl::OkStatus();
  };
  Submit(long_one, "long");
  ExpectAlone(short_one);
  ExpectAlone(long_one);
  EXPECT_THAT(ended_, ElementsAre("short", "long"));
}

TEST_F(DispatcherTest, WhatIsCancelledInTheQueueEndsWithoutATurn) {
  std::atomic<int> calls{0};
  h_.backend_.on_map = [&](kv::LayerRange, auto) {
    ++calls;
    return absl::OkStatus();
  };
  HoldWorker();
  Request& request = Add(100);
  Submit(request);
  std::weak_ptr<Cache> target = request.target;
  request.target.reset();
  EXPECT_EQ(h_.engine_->queued_units(), 1u);
  request.transfer->Cancel(
      {guard::Outcome::kFallbackReprefill, Reason::kCancelled, "the caller left"});
  EXPECT_FALSE(target.expired());  // until a worker has let go of it
  LetGo();
  request.done->WaitForNotification();
  EXPECT_EQ(request.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(target.expired());
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(request.transfer->Finish()->reason, Reason::kCancelled);
  request.transfer.reset();
  EXPECT_EQ(h_.engine_->queued_units(), 0u);
  EXPECT_EQ(h_.engine_->admission().inflight_bytes(), 0u);
}

// Everything at once on four workers: sweeps, tiles and shared passes, some of them cancelled.
TEST(DispatcherRaceTest, WhateverMeetsTheBytesAreThoseOfTransfersAlone) {
  Harness h;
  std::atomic<int> applied{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c) {
    callers.emplace_back([&, c] {
      for (int i = 0; i < 20; ++i) {
        const int64_t tokens = 1 + (c * 53 + i * 31) % 100;
        const auto source = RandomCache(h.source_.geometry, tokens + 1, 100 * c + i);
        const auto target = std::make_shared<Cache>(h.target_.geometry, tokens + 1);
        guard::TransferSpec spec = h.Spec(tokens);
        spec.tenant = std::string(1, static_cast<char>('a' + c % 3));
        spec.source_buffered = spec.target_buffered = false;
        const auto transfer = h.Begin(spec);
        const bool cancel = (c + i) % 5 == 0;
        test::Notification done;
        TileWork work = h.Tile({0, tokens}, source, target);
        int32_t published = 0;
        work.on_layers = [&](kv::LayerRange layers) {
          EXPECT_EQ(layers.begin, published);
          published = layers.end;
          if (cancel)
            transfer->Cancel({guard::Outcome::kFallbackReprefill, Reason::kCancelled, ""});
        };
        work.on_done = [&](const absl::Status&) { done.Notify(); };
        ASSERT_TRUE(transfer->SubmitTile(std::move(work)).ok());
        done.WaitForNotification();
        const Decision d = transfer->Finish().value();
        EXPECT_EQ(d.reason, cancel ? Reason::kCancelled : Reason::kNone) << d.detail;
        if (!d.applied()) continue;
        ++applied;
        EXPECT_EQ(target->bytes, h.Expected(*source, tokens, tokens + 1));
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(applied, 128);
  EXPECT_EQ(h.engine_->queued_units(), 0u);
  EXPECT_EQ(h.backend_.live_tiles(), 0);
  EXPECT_EQ(h.engine_->admission().inflight_bytes(), 0u);
}

}  // namespace
}  // namespace kvbridge::engine
