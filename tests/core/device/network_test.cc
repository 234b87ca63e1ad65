// Maps with a network, on every instruction set that this machine has.
#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/device/cpu/cpu_backend.h"
#include "core/device/cpu/isa.h"
#include "tests/core/device/random_map.h"

namespace kvbridge::device {
namespace {

using kv::Component;
using mapper::KeyNorm;
using mapper::Support;
using model::Pairing;
using ::testing::HasSubstr;

class NetworkTest : public testing::TestWithParam<Isa> {
 protected:
  std::unique_ptr<ResidentMapper> Resident(const MapSpec& spec,
                                           Precision precision = Precision::kBf16) {
    mapper_ = MakeMapper(spec, rng_);
    return backend_->MakeResident(mapper_, precision, {}).value();
  }

  // Maps `source`, some tokens at a time.
  TileChecks Map(const ResidentMapper& resident, const TileSource& source, const Cache& target,
                 int64_t tile_tokens) {
    TileChecks all;
    for (int64_t begin = 0; begin < source.tokens.size(); begin += tile_tokens) {
      TileSource part = source;
      part.tokens = {begin, std::min(begin + tile_tokens, source.tokens.end)};
      part.positions = source.positions.subspan(begin, part.tokens.size());
      const auto tile = backend_->Prepare(resident, part).value();
      all.Merge(backend_
                    ->MapLayers(resident, *tile, {0, target.view.layers}, target.view, begin,
                                [] { return false; })
                    .value());
    }
    return all;
  }

  std::mt19937 rng_{77};
  std::unique_ptr<base::WorkerPool> workers_ = base::WorkerPool::Create({.threads = 3}).value();
  std::shared_ptr<kv::BufferPool> pool_ = kv::BufferPool::Create(uint64_t{1} << 30);
  std::shared_ptr<mapper::Mapper> mapper_;
  std::unique_ptr<CpuBackend> backend_ =
      CpuBackend::Create({.isa = GetParam()}, workers_.get(), pool_).value();
};

// More than one unit of 256 columns, in the results and in the first hidden layer.
MapSpec Large(Support support) {
  return {.source = {.layers = 2, .kv_heads = 4, .head_dim = 96},
          .target = {.layers = 2, .kv_heads = 4, .head_dim = 128},
          .support = support,
          .hidden = {300, 40},
          .key_norm = KeyNorm::Kind::kKNorm,
          .source_rope = MakeRope(96, Pairing::kHalf, 1),
          .target_rope = MakeRope(128, Pairing::kHalf, 1.2)};
}

TEST_P(NetworkTest, AgreesWithTheFormulaInDouble) {
  for (const Support support : {Support::kFull, Support::kHeadLocal, Support::kMlp}) {
    for (const Precision precision : {Precision::kBf16, Precision::kF32}) {
      const MapSpec spec = Large(support);
      const auto resident = Resident(spec, precision);
      const auto source = Cache::Make(spec.source, 37, Layout::kTokenMajor, 1, rng_);
      auto to = spec.target;
      to.dtype = tensor::DType::kF32;
      const auto target = Cache::Make(to, 37, Layout::kTokenMajor, 1, rng_);
      const Tile tile(*source, 9);
      Map(*resident, tile.source, *target, 37);
      const double tolerance = precision == Precision::kF32 ? 1e-5 : std::ldexp(1, -7);
      for (int32_t l = 0; l < spec.target.layers; ++l) {
        for (const Component c : kv::kComponents) {
          const std::vector<double> want = Reference(*mapper_, tile.source, l, c);
          double squares = 0;
          for (const double value : want) squares += value * value;
          const double usual = std::sqrt(squares * 128 / static_cast<double>(want.size()));
          for (int64_t row = 0; row < 37 * 4; ++row) {
            const auto got = target->Head(l, c, row / 4, static_cast<int32_t>(row % 4));
            for (int32_t d = 0; d < 128; ++d) {
              ASSERT_NEAR(got[d], want[row * 128 + d], tolerance * usual)
                  << mapper::Name(support) << " layer " << l << " row " << row << " dim " << d;
            }
          }
        }
      }
    }
  }
}

TEST_P(NetworkTest, BytesDoNotDependOnTheTilingOrTheNeighbours) {
  for (const Support support : {Support::kFull, Support::kHeadLocal, Support::kMlp}) {
    const MapSpec spec = Large(support);
    const auto resident = Resident(spec);
    const auto source = Cache::Make(spec.source, 550, Layout::kTokenMajor, 1, rng_);
    const Tile tile(*source, 3);
    const auto whole = Cache::Make(spec.target, 550, Layout::kTokenMajor, 1, rng_);
    Map(*resident, tile.source, *whole, 550);
    for (const int64_t tokens : {1, 17, 256}) {
      TileSource some = tile.source;
      some.tokens.end = tokens == 1 ? 40 : 550;
      some.positions = some.positions.first(some.tokens.end);
      const auto parts = Cache::Make(spec.target, 550, Layout::kTokenMajor, 1, rng_);
      Map(*resident, some, *parts, tokens);
      for (int32_t l = 0; l < spec.target.layers; ++l) {
        for (const Component c : kv::kComponents) {
          EXPECT_EQ(std::memcmp(parts->view.plane(l, c).base, whole->view.plane(l, c).base,
                                some.tokens.end * 4 * 128 * 2),
                    0)
              << mapper::Name(support) << " tiles of " << tokens;
        }
      }
    }
  }
}

// Nothing that is not finite may vanish in a hidden unit that is off.
TEST_P(NetworkTest, WhatIsNotFiniteInTheSourceIsCounted) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    MapSpec spec = Large(Support::kMlp);
    spec.hidden = {1};
    spec.top_k = 1;
    spec.source_rope = spec.target_rope = MakeRope(0, Pairing::kHalf, 1);
    const auto resident = Resident(spec);
    const auto source = Cache::Make(spec.source, 40, Layout::kTokenMajor, 1, rng_);
    std::vector<float> head(96, 0.0f);
    head[7] = bad;
    for (int32_t l = 0; l < 2; ++l) {
      for (const Component c : kv::kComponents)
        kv::WriteHead(source->view, l, c, 21, 1, head.data());
    }
    const Tile tile(*source, 0);
    const auto target = Cache::Make(spec.target, 40, Layout::kTokenMajor, 1, rng_);
    EXPECT_EQ(Map(*resident, tile.source, *target, 40).non_finite, 2u * 2 * 4 * 128) << bad;
  }
}

TEST_P(NetworkTest, AWeightThatIsNotFiniteIsRefusedByName) {
  const auto refused = [&](auto spoil) {
    MapSpec spec = Large(Support::kFull);
    spec.weight_dtype = tensor::DType::kF32;
    const auto mapper = MakeMapper(spec, rng_);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const mapper::TensorRef& tensor = spoil(*mapper);
    std::memcpy(const_cast<std::byte*>(tensor.data.data()) + tensor.data.size() - 4, &nan, 4);
    return backend_->MakeResident(mapper, Precision::kBf16, {}).status();
  };
  using mapper::Mapper;
  const auto hidden =
      refused([](Mapper& m) -> const mapper::TensorRef& { return m.keys[1].hidden[1].weight; });
  EXPECT_EQ(hidden.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(hidden.message()), HasSubstr("keys[1].hidden[1]: expected finite"));
  const auto bias =
      refused([](Mapper& m) -> const mapper::TensorRef& { return m.values[0].hidden[0].bias; });
  EXPECT_THAT(std::string(bias.message()), HasSubstr("values[0].hidden[0].bias: expected finite"));
  const auto out = refused([](Mapper& m) -> const mapper::TensorRef& { return m.keys[0].out; });
  EXPECT_THAT(std::string(out.message()), HasSubstr("keys[0].out: expected finite"));
  EXPECT_THAT(std::string(out.message()), HasSubstr("head 3"));
}

INSTANTIATE_TEST_SUITE_P(Isas, NetworkTest, testing::ValuesIn(cpu::SupportedIsas()));

}  // namespace
}  // namespace kvbridge::device
