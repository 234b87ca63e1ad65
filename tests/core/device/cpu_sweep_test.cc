// What layer-major sweeps and shared passes rest on: a tile that takes its source layer by layer,
// and tiles of several requests mapped together, give the bytes of tiles alone.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "core/device/cpu/cpu_backend.h"
#include "core/device/cpu/resident_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/device/random_map.h"

namespace kvbridge::device {
namespace {

using kv::Component;
using mapper::Support;
using model::Pairing;

bool Never() { return false; }

class CpuSweepTest : public testing::TestWithParam<Isa> {
 protected:
  CpuSweepTest() {
    workers_ = base::WorkerPool::Create({.threads = 3}).value();
    pool_ = kv::BufferPool::Create(uint64_t{1} << 28);
    backend_ = CpuBackend::Create({.isa = GetParam()}, workers_.get(), pool_).value();
  }

  // Ten layers, of which each target layer reads its own and the two next.
  std::unique_ptr<ResidentMapper> Resident(Support support, Precision precision) {
    spec_ = {.source = {.layers = 12, .kv_heads = 2, .head_dim = 32},
             .target = {.layers = 10, .kv_heads = 2, .head_dim = 48},
             .support = support,
             .top_k = 3,
             .key_norm = mapper::KeyNorm::Kind::kKNorm,
             .source_rope = MakeRope(32, Pairing::kHalf, 1),
             .target_rope = MakeRope(48, Pairing::kInterleaved, 1.2)};
    const auto made = MakeMapper(spec_, rng_);
    for (int32_t l = 0; l < 10; ++l) {
      made->keys[l].sources = made->values[l].sources = {l, l + 1, l + 2};
    }
    return backend_->MakeResident(made, precision, {}).value();
  }
  std::unique_ptr<Cache> SourceOf(int64_t tokens) {
    return Cache::Make(spec_.source, tokens, Layout::kPaged, 1, rng_);
  }
  std::unique_ptr<Cache> Target(int64_t tokens) {
    auto cache = Cache::Make(spec_.target, tokens, Layout::kTokenMajor, 1, rng_);
    std::fill(cache->bytes.begin(), cache->bytes.end(), std::byte{0x5a});
    return cache;
  }
  std::unique_ptr<PreparedTile> Prepare(const ResidentMapper& resident, const Tile& tile,
                                        SourceUse use = SourceUse::kAtOnce) {
    TileSource source = tile.source;
    source.use = use;
    return backend_->Prepare(resident, source).value();
  }
  std::unique_ptr<Cache> Alone(const ResidentMapper& resident, const Cache& source) {
    const Tile tile(source, 5);
    auto target = Target(source.view.tokens);
    EXPECT_TRUE(
        backend_->MapLayers(resident, *Prepare(resident, tile), {0, 10}, target->view, 0, Never)
            .ok());
    return target;
  }

  std::mt19937 rng_{7};
  MapSpec spec_;
  std::unique_ptr<base::WorkerPool> workers_;
  std::shared_ptr<kv::BufferPool> pool_;
  std::unique_ptr<CpuBackend> backend_;
};

TEST_P(CpuSweepTest, ASourceTakenLayerByLayerGivesTheBytesOfOneTakenAtOnce) {
  for (Support support : {Support::kFull, Support::kHeadLocal}) {
    for (Precision precision : {Precision::kBf16, Precision::kF32}) {
      const auto resident = Resident(support, precision);
      const auto source = SourceOf(70);
      const auto expected = Alone(*resident, *source);
      const auto target = Target(70);
      const Tile tile(*source, 5);
      const auto prepared = Prepare(*resident, tile, SourceUse::kByLayer);
      EXPECT_EQ(prepared->source_layers(), 10);  // layer 11 is read by the last one only
      for (const kv::LayerRange layers :
           std::vector<kv::LayerRange>{{0, 1}, {1, 2}, {2, 4}, {4, 8}, {8, 10}}) {
        ASSERT_TRUE(backend_->MapLayers(*resident, *prepared, layers, target->view, 0, Never).ok());
        // What was needed for the last time may be overwritten.
        for (int32_t l = 0; l < layers.begin; ++l) {
          for (const Component c : kv::kComponents) kv::ZeroRows(source->view, l, c, {0, 70});
        }
      }
      EXPECT_TRUE(target->bytes == expected->bytes);
    }
  }
}

TEST_P(CpuSweepTest, ATileByLayerHoldsWhatTwoGroupsOfLayersNeedAndNoMore) {
  const auto resident = Resident(Support::kHeadLocal, Precision::kBf16);
  const auto source = SourceOf(70);
  const Tile tile(*source, 5);
  const auto all = Prepare(*resident, tile);
  const auto few = Prepare(*resident, tile, SourceUse::kByLayer);
  EXPECT_EQ(few->bytes(), backend_->TileBytes(*resident, 70, SourceUse::kByLayer));
  const uint64_t tables = 70 * 6 * (32 + 48);
  // Groups of four layers read six source layers, of all twelve.
  EXPECT_EQ((few->bytes() - tables) * 2, all->bytes() - tables);
}

TEST_P(CpuSweepTest, LayersOutOfOrderAreRefused) {
  const auto resident = Resident(Support::kHeadLocal, Precision::kBf16);
  const auto source = SourceOf(3);
  const Tile tile(*source, 5);
  const auto target = Target(3);
  const auto prepared = Prepare(*resident, tile, SourceUse::kByLayer);
  const auto map = [&](kv::LayerRange layers) {
    return backend_->MapLayers(*resident, *prepared, layers, target->view, 0, Never).status();
  };
  EXPECT_EQ(map({4, 8}).message(), "layers: expected to begin at 0 and end by 4, got [4, 8)");
  EXPECT_EQ(map({0, 5}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(map({0, 4}).ok());
  EXPECT_EQ(map({0, 4}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(map({4, 8}).ok());
}

// Eight requests of odd lengths: one holds a NaN, one is cancelled, one has a target of another
// shape. The rest get the bytes and the checks they get alone.
TEST_P(CpuSweepTest, TilesMappedTogetherDoNotTouchEachOther) {
  for (Support support : {Support::kFull, Support::kHeadLocal}) {
    const auto resident = Resident(support, Precision::kBf16);
    std::vector<std::unique_ptr<Cache>> sources, targets, alone;
    std::vector<Tile> tiles;
    std::vector<std::unique_ptr<PreparedTile>> prepared;
    for (const int64_t tokens : {64, 1, 33, 100, 32, 7, 400, 64}) {
      sources.push_back(SourceOf(tokens));
      alone.push_back(Alone(*resident, *sources.back()));
      targets.push_back(Target(tokens));
    }
    constexpr size_t kNan = 2, kCancelled = 3, kMisshapen = 4;
    std::vector<float> nan(32, std::numeric_limits<float>::quiet_NaN());
    kv::WriteHead(sources[kNan]->view, 3, Component::kValue, 20, 0, nan.data());
    kv::KvView misshapen = targets[kMisshapen]->view;
    misshapen.kv_heads = 1;
    for (const auto& source : sources) {
      prepared.push_back(Prepare(*resident, tiles.emplace_back(*source, 5)));
    }
    const auto always = [] { return true; };
    std::vector<TilePart> parts;
    for (size_t i = 0; i < sources.size(); ++i) {
      const bool cancelled = i == kCancelled;
      parts.push_back({.tile = prepared[i].get(),
                       .target = i == kMisshapen ? &misshapen : &targets[i]->view,
                       .cancelled = cancelled ? absl::FunctionRef<bool()>(always) : Never});
    }
    const auto answers = backend_->MapTogether(*resident, {0, 10}, parts);
    ASSERT_EQ(answers.size(), parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i == kCancelled) {
        EXPECT_EQ(answers[i].status().code(), absl::StatusCode::kCancelled);
      } else if (i == kMisshapen) {
        EXPECT_EQ(answers[i].status().message(), "target.kv_heads: expected 2, got 1");
      } else {
        ASSERT_TRUE(answers[i].ok()) << answers[i].status();
        EXPECT_EQ(answers[i]->non_finite > 0, i == kNan) << i;
        EXPECT_EQ(targets[i]->bytes == alone[i]->bytes, i != kNan) << i;
      }
    }
    // The NaN spoilt its own token only.
    const Component v = Component::kValue;
    EXPECT_EQ(targets[kNan]->Head(3, v, 19, 0), alone[kNan]->Head(3, v, 19, 0));
    EXPECT_EQ(targets[kNan]->Head(3, v, 21, 0), alone[kNan]->Head(3, v, 21, 0));
  }
}

TEST_P(CpuSweepTest, APassThatFindsNoRoomAnswersEveryPart) {
  const auto resident = Resident(Support::kHeadLocal, Precision::kBf16);
  const auto source = SourceOf(40);
  const Tile tile(*source, 5);
  const auto target = Target(40);
  const auto first = Prepare(*resident, tile), second = Prepare(*resident, tile);
  const auto rest = pool_->Acquire((uint64_t{1} << 28) - pool_->bytes_in_use()).value();
  const std::vector<TilePart> parts = {
      {.tile = first.get(), .target = &target->view, .cancelled = Never},
      {.tile = second.get(), .target = &target->view, .cancelled = Never}};
  for (const auto& answer : backend_->MapTogether(*resident, {0, 10}, parts)) {
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kResourceExhausted);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuSweepTest, testing::ValuesIn(cpu::SupportedIsas()),
                         [](const auto& info) {
                           std::string name = cpu::KernelsFor(info.param).name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvbridge::device
