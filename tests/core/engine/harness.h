// An engine over the fake device and a clock that stands still, and caches to map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/worker_pool.h"
#include "core/engine/local_transfer.h"
#include "core/engine/transfer_engine.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"
#include "tests/support/fake_clock.h"

namespace kvbridge::engine {

// A dense cache that owns its bytes.
struct Cache {
  Cache(const model::KvGeometry& g, int64_t tokens)
      : bytes(g.token_bytes() * tokens, std::byte{0xff}),
        view(kv::DenseTileView(bytes.data(), g.dtype, g.layers, tokens, g.kv_heads, g.head_dim)) {}

  std::vector<std::byte> bytes;
  kv::KvView view;
};

// FP32 values in [-1, 1).
inline std::shared_ptr<Cache> RandomCache(const model::KvGeometry& geometry, int64_t tokens,
                                          uint32_t seed) {
  auto cache = std::make_shared<Cache>(geometry, tokens);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-1, 1);
  for (size_t i = 0; i < cache->bytes.size(); i += sizeof(float)) {
    const float v = value(random);
    std::memcpy(cache->bytes.data() + i, &v, sizeof(v));
  }
  return cache;
}

class Harness {
 public:
  explicit Harness(TransferEngine::Options options = DefaultOptions(), int threads = 4,
                   size_t max_jobs = 4096)
      : source_(test::FakeModel("small", 2, 2, 8)), target_(test::FakeModel("large", 10, 2, 8)) {
    pool_ = base::WorkerPool::Create({threads, max_jobs}).value();
    engine_ = TransferEngine::Create(options, {pool_.get(), &backend_, &clock_}).value();
    pin_.resident =
        backend_
            .MakeResident(std::make_shared<mapper::Mapper>(test::FakeMapper(source_, target_)),
                          device::Precision::kF32, {})
            .value();
    pin_.proven = true;
  }

  static TransferEngine::Options DefaultOptions() {
    TransferEngine::Options options;
    options.tile_tokens = 16;
    return options;
  }

  // A request that covers `covered` tokens.
  guard::TransferSpec Spec(int64_t covered) const {
    guard::TransferSpec spec;
    spec.request_id = "req-1";
    spec.route = "small-large";
    spec.token_ids_sha256 = std::string(64, 'a');
    spec.source = source_;
    spec.target = target_;
    spec.tokens = covered + 1;
    spec.key_state = guard::KeyState::kRoped;
    return spec;
  }

  std::shared_ptr<Transfer> Begin(const guard::TransferSpec& spec) {
    auto begun = engine_->Begin(spec, policy_, pin_);
    if (auto* decision = std::get_if<Decision>(&begun)) {
      ADD_FAILURE() << "refused: " << decision->detail;
      return nullptr;
    }
    return std::get<std::shared_ptr<Transfer>>(std::move(begun));
  }
  Decision BeginRefused(const guard::TransferSpec& spec) {
    auto begun = engine_->Begin(spec, policy_, pin_);
    if (auto* decision = std::get_if<Decision>(&begun)) return *std::move(decision);
    ADD_FAILURE() << "admitted";
    return {};
  }
  Decision RunLocal(const guard::TransferSpec& spec, const Cache& source, Cache& target) {
    return engine::RunLocal(*engine_, spec, policy_, pin_, source.view, target.view);
  }

  TileWork Tile(kv::TokenRange tokens, const std::shared_ptr<Cache>& source,
                const std::shared_ptr<Cache>& target) const {
    TileWork work;
    work.tokens = tokens;
    work.source = source->view;
    work.source_begin = tokens.begin;
    work.source_owner = source;
    work.target = target->view;
    work.target_begin = tokens.begin;
    work.target_owner = target;
    return work;
  }

  // What the device makes of the first `covered` tokens in one go.
  std::vector<std::byte> Expected(const Cache& source, int64_t covered,
                                  int64_t target_tokens) const {
    test::FakeBackend device;
    Cache target(target_.geometry, target_tokens);
    std::vector<int64_t> positions(covered);
    std::iota(positions.begin(), positions.end(), 0);
    const auto tile =
        device.Prepare(*pin_.resident, {&source.view, {0, covered}, positions, true}).value();
    EXPECT_TRUE(device
                    .MapLayers(*pin_.resident, *tile, {0, target_.geometry.layers}, target.view, 0,
                               [] { return false; })
                    .ok());
    return target.bytes;
  }

  test::FakeClock clock_;
  test::FakeBackend backend_;
  const model::ModelSpec source_;
  const model::ModelSpec target_;
  guard::RoutePolicy policy_;
  ArtifactPin pin_;
  // The pool goes first: its workers use all of the rest.
  std::unique_ptr<TransferEngine> engine_;
  std::unique_ptr<base::WorkerPool> pool_;
};

}  // namespace kvbridge::engine
