#include "core/store/mapper_store.h"

#include <atomic>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/store/hooked_backend.h"
#include "tests/support/notification.h"

namespace kvbridge::store {
namespace {

using artifact::SyntheticMapper;

class MapperStoreTest : public ::testing::Test {
 protected:
  // Writes an artifact; returns its digest.
  std::string Save(const std::string& name, uint32_t seed) {
    return artifact::SaveArtifact(dir_ / name, *SyntheticMapper({.seed = seed}), {.lambda = 0.01},
                                  {.pool = pool_.get()})
        .value();
  }
  void Damage(const std::string& name) {
    std::string weights = artifact::Slurp(dir_ / name / "mapper.safetensors");
    weights.back() ^= 1;
    artifact::Spill(dir_ / name / "mapper.safetensors", weights);
  }
  absl::Status Load(const std::string& name) {
    return store_.Load("a-to-b", {.dir = dir_ / name}).status();
  }

  artifact::TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
  HookedBackend backend_{pool_.get()};
  base::SystemClock clock_;
  MapperStore store_{&backend_, pool_.get(), &clock_};
};

TEST_F(MapperStoreTest, ALoadedMapperIsPinnedAndListed) {
  const std::string digest = Save("one", 1);
  ASSERT_TRUE(Load("one").ok());
  const auto pin = store_.Pin("a-to-b");
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ((*pin)->mapper().digest, digest);
  EXPECT_EQ((*pin)->provenance.verdict(), artifact::Verdict::kUnproven);
  EXPECT_GT((*pin)->resident->resident_bytes(), 0u);
  const auto list = store_.List();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].pair, "a-to-b");
  EXPECT_EQ(list[0].loaded, *pin);
}

TEST_F(MapperStoreTest, WhatWasNeverLoadedIsNotFound) {
  EXPECT_EQ(store_.Pin("a-to-b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_.Unload("a-to-b").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_.List().empty());
}

TEST_F(MapperStoreTest, AMissingArtifactIsUnavailableADamagedOneFailsIntegrity) {
  EXPECT_EQ(Load("nowhere").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_.Pin("a-to-b").status().code(), absl::StatusCode::kNotFound);
  Save("one", 1);
  Damage("one");
  EXPECT_EQ(Load("one").code(), absl::StatusCode::kDataLoss);
  const absl::Status pin = store_.Pin("a-to-b").status();
  EXPECT_EQ(pin.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(pin.message().find("SHA-256"), absl::string_view::npos) << pin;
  EXPECT_EQ(store_.List()[0].last_error.code(), absl::StatusCode::kDataLoss);
}

TEST_F(MapperStoreTest, ABadArtifactChangesNothingButTheLastError) {
  const std::string digest = Save("good", 1);
  Save("bad", 2);
  Damage("bad");
  ASSERT_TRUE(Load("good").ok());
  EXPECT_EQ(Load("bad").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*store_.Pin("a-to-b"))->mapper().digest, digest);
  EXPECT_EQ(store_.List()[0].last_error.code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(Load("good").ok());
  EXPECT_TRUE(store_.List()[0].last_error.ok());
}

TEST_F(MapperStoreTest, AMapperThatFailsItsSelfTestIsNotUsed) {
  const std::string digest = Save("one", 1);
  Save("two", 2);
  ASSERT_TRUE(Load("one").ok());
  backend_.after_map = [](const kv::KvView& view, device::TileChecks*) {
    reinterpret_cast<float*>(view.Row(0, kv::Component::kKey, view.tokens - 1))[0] += 100;
  };
  EXPECT_EQ(Load("two").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*store_.Pin("a-to-b"))->mapper().digest, digest);
}

// Loading leaves the search for NaN to MakeResident.
TEST_F(MapperStoreTest, NonFiniteWeightsAreRefused) {
  model::ModelSpec spec;
  spec.geometry = {.layers = 2, .kv_heads = 1, .head_dim = 4};
  spec.rope.params = {.inv_freq = {1.0, 0.1}, .rotary_dim = 4};
  const auto load = [&](const std::string& name) {
    return store_
        .Load("pair",
              {.dir = "tests/data/golden/malformed/" + name, .source = spec, .target = spec})
        .status();
  };
  EXPECT_TRUE(load("ok").ok());
  EXPECT_EQ(load("nan_weight").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(load("inf_bias").code(), absl::StatusCode::kInvalidArgument);
  // Finite, but the map of it is not: the self-test finds out.
  EXPECT_EQ(load("huge_finite_weight").code(), absl::StatusCode::kDataLoss);
}

TEST_F(MapperStoreTest, TheOldMapperLivesUntilItsLastPinDrops) {
  Save("one", 1);
  Save("two", 2);
  ASSERT_TRUE(Load("one").ok());
  PinnedMapper pin = store_.Pin("a-to-b").value();
  const std::weak_ptr<const device::ResidentMapper> old = pin->resident;
  ASSERT_TRUE(Load("two").ok());
  EXPECT_FALSE(old.expired());
  pin.reset();
  EXPECT_TRUE(old.expired());
}

TEST_F(MapperStoreTest, UnloadingKeepsPinsAlive) {
  Save("one", 1);
  ASSERT_TRUE(Load("one").ok());
  PinnedMapper pin = store_.Pin("a-to-b").value();
  const std::weak_ptr<const device::ResidentMapper> old = pin->resident;
  ASSERT_TRUE(store_.Unload("a-to-b").ok());
  EXPECT_EQ(store_.Pin("a-to-b").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(old.expired());
  pin.reset();
  EXPECT_TRUE(old.expired());
}

TEST_F(MapperStoreTest, PinsDoNotWaitForALoad) {
  const std::string one = Save("one", 1);
  const std::string two = Save("two", 2);
  ASSERT_TRUE(Load("one").ok());
  test::Notification loading;
  test::Notification go_on;
  backend_.before_make_resident = [&] {
    loading.Notify();
    go_on.WaitForNotification();
  };
  std::thread loader([&] { EXPECT_TRUE(Load("two").ok()); });
  loading.WaitForNotification();
  EXPECT_EQ((*store_.Pin("a-to-b"))->mapper().digest, one);
  EXPECT_EQ(store_.List().size(), 1u);
  go_on.Notify();
  loader.join();
  EXPECT_EQ((*store_.Pin("a-to-b"))->mapper().digest, two);
}

TEST_F(MapperStoreTest, LoadsOfOnePairRunOneAfterTheOther) {
  Save("one", 1);
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  backend_.before_make_resident = [&] {
    const int now = ++running;
    int seen = most;
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
  };
  backend_.after_map = [&](const kv::KvView&, device::TileChecks*) { running = 0; };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_TRUE(Load("one").ok()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
}

TEST_F(MapperStoreTest, ASecondLoadWhileServingAddsNoFailedPin) {
  const std::set<std::string> digests = {Save("one", 1), Save("two", 2)};
  Save("bad", 3);
  Damage("bad");
  ASSERT_TRUE(Load("one").ok());
  std::atomic<bool> stop{false};
  std::atomic<int64_t> pins{0};
  std::vector<std::thread> servers;
  for (int i = 0; i < 4; ++i) {
    servers.emplace_back([&] {
      while (!stop) {
        const auto pin = store_.Pin("a-to-b");
        ASSERT_TRUE(pin.ok()) << pin.status();
        ASSERT_EQ(digests.count((*pin)->mapper().digest), 1u);
        ++pins;
      }
    });
  }
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(Load("two").ok());
    EXPECT_EQ(Load("bad").code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(Load("one").ok());
  }
  stop = true;
  for (std::thread& server : servers) server.join();
  EXPECT_GT(pins, 0);
}

}  // namespace
}  // namespace kvbridge::store
