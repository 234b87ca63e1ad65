// Whole transfers with the device that serves: tiles, threads and neighbours must not show in the
// bytes.
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/device/cpu/cpu_backend.h"
#include "core/engine/local_transfer.h"
#include "core/kv/buffer_pool.h"
#include "gtest/gtest.h"
#include "tests/core/device/random_map.h"
#include "tests/support/fake_backend.h"
#include "tests/support/fake_clock.h"

namespace kvbridge::engine {
namespace {

constexpr int64_t kPosition = 1000;

class CpuTransferTest : public ::testing::Test {
 protected:
  CpuTransferTest() {
    pool_ = base::WorkerPool::Create({.threads = 4}).value();
    backend_ = device::CpuBackend::Create({}, pool_.get(), kv::BufferPool::Create(1 << 26)).value();
    TransferEngine::Options options;
    options.tile_tokens = 16;
    engine_ = TransferEngine::Create(options, {pool_.get(), backend_.get(), &clock_}).value();

    device::MapSpec spec;
    spec.source_rope = device::MakeRope(32, model::Pairing::kHalf, 1);
    spec.target_rope = device::MakeRope(32, model::Pairing::kHalf, 1.2);
    auto mapper = std::make_shared<mapper::Mapper>(*device::MakeMapper(spec, random_));
    mapper->source.identity = test::FakeModel("small", 1, 1, 2).identity;
    mapper->target.identity = test::FakeModel("large", 1, 1, 2).identity;
    pin_ = {backend_->MakeResident(std::move(mapper), device::Precision::kBf16, {}).value(), true};
  }

  const mapper::Mapper& mapper() const { return pin_.resident->mapper(); }
  std::unique_ptr<device::Cache> Cache(const model::ModelSpec& model, int64_t tokens) {
    return device::Cache::Make(model.geometry, tokens, device::Layout::kTokenMajor, 1, random_);
  }
  Decision Run(const device::Cache& source, device::Cache& target, int64_t covered) {
    guard::TransferSpec spec;
    spec.request_id = "req-1";
    spec.source = mapper().source;
    spec.target = mapper().target;
    spec.tokens = covered + 1;
    spec.position_start = kPosition;
    spec.key_state = guard::KeyState::kRoped;
    return RunLocal(*engine_, spec, {}, pin_, source.view, target.view);
  }
  // The same in one tile, straight from the device.
  void MapAtOnce(const device::Cache& source, device::Cache& target, int64_t covered) {
    std::vector<int64_t> positions(covered);
    std::iota(positions.begin(), positions.end(), kPosition);
    const auto tile =
        backend_->Prepare(*pin_.resident, {&source.view, {0, covered}, positions, true}).value();
    ASSERT_TRUE(backend_
                    ->MapLayers(*pin_.resident, *tile, {0, target.view.layers}, target.view, 0,
                                [] { return false; })
                    .ok());
  }

  std::mt19937 random_{31};
  test::FakeClock clock_;
  std::unique_ptr<device::CpuBackend> backend_;
  std::unique_ptr<TransferEngine> engine_;
  ArtifactPin pin_;
  std::unique_ptr<base::WorkerPool> pool_;
};

TEST_F(CpuTransferTest, TilesGiveTheBytesOfOneTile) {
  const auto source = Cache(mapper().source, 101);
  const auto tiled = Cache(mapper().target, 101);
  const auto at_once = Cache(mapper().target, 101);
  at_once->bytes = tiled->bytes;  // the token that is not covered stays what it was
  const Decision d = Run(*source, *tiled, 100);
  EXPECT_TRUE(d.applied()) << d.detail;
  EXPECT_GT(d.max_abs, 0);
  MapAtOnce(*source, *at_once, 100);
  EXPECT_EQ(tiled->bytes, at_once->bytes);
}

TEST_F(CpuTransferTest, ThirtyOneNeighboursChangeNoByte) {
  constexpr int kTransfers = 32;
  std::vector<std::unique_ptr<device::Cache>> sources, targets, expected;
  for (int i = 0; i < kTransfers; ++i) {
    const int64_t covered = 10 + 5 * i;
    sources.push_back(Cache(mapper().source, covered + 1));
    targets.push_back(Cache(mapper().target, covered + 1));
    expected.push_back(Cache(mapper().target, covered + 1));
    expected.back()->bytes = targets.back()->bytes;
    MapAtOnce(*sources.back(), *expected.back(), covered);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kTransfers; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_TRUE(Run(*sources[i], *targets[i], 10 + 5 * i).applied()); });
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < kTransfers; ++i) EXPECT_EQ(targets[i]->bytes, expected[i]->bytes) << i;
  EXPECT_EQ(engine_->admission().inflight_bytes(), 0u);
}

}  // namespace
}  // namespace kvbridge::engine
