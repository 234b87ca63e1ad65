#include "core/device/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/tensor/convert.h"
#include "tests/core/device/random_map.h"

namespace kvbridge::device {
namespace {

using kv::Component;
using mapper::KeyNorm;
using mapper::Support;
using model::Pairing;
using tensor::DType;
using testing::HasSubstr;

constexpr uint64_t kPoolBytes = uint64_t{1} << 30;

bool Never() { return false; }

// Error of one element that comes from the target's dtype, relative to the element.
double RoundingOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return std::ldexp(1, -11);
    case DType::kBf16:
      return std::ldexp(1, -8);
    case DType::kF8E4M3:
      return std::ldexp(1, -4);
  }
  return 0;
}

class CpuBackendTest : public testing::TestWithParam<Isa> {
 protected:
  CpuBackendTest() {
    workers_ = base::WorkerPool::Create({.threads = 3}).value();
    pool_ = kv::BufferPool::Create(kPoolBytes);
    backend_ = CpuBackend::Create({.isa = GetParam()}, workers_.get(), pool_).value();
  }

  // Maps all of `source` in tiles of `tile_tokens`.
  absl::StatusOr<TileChecks> Map(const ResidentMapper& resident, const TileSource& source,
                                 const Cache& target, int64_t tile_tokens) {
    TileChecks checks;
    for (int64_t begin = 0; begin < source.tokens.size(); begin += tile_tokens) {
      const int64_t count = std::min(tile_tokens, source.tokens.size() - begin);
      TileSource part = source;
      part.tokens = {source.tokens.begin + begin, source.tokens.begin + begin + count};
      part.positions = source.positions.subspan(begin, count);
      auto tile = backend_->Prepare(resident, part);
      if (!tile.ok()) return tile.status();
      auto seen =
          backend_->MapLayers(resident, **tile, {0, resident.mapper().target.geometry.layers},
                              target.view, begin, Never);
      if (!seen.ok()) return seen.status();
      checks.Merge(*seen);
    }
    return checks;
  }

  std::unique_ptr<ResidentMapper> Resident(std::shared_ptr<const mapper::Mapper> mapper,
                                           Precision precision = Precision::kBf16) {
    return backend_->MakeResident(std::move(mapper), precision, {}).value();
  }

  // Every row of every head within `tolerance` of its norm (or of the usual row's, where it happens
  // to be short), and the dtype's own rounding.
  void ExpectMatches(const mapper::Mapper& mapper, const TileSource& source, const Cache& target,
                     double tolerance) {
    const auto& to = mapper.target.geometry;
    for (int32_t l = 0; l < to.layers; ++l) {
      for (Component c : kv::kComponents) {
        const std::vector<double> want = Reference(mapper, source, l, c);
        const double smallest = to.dtype == DType::kF8E4M3
                                    ? target.view.Scale(l, c, 0) * std::ldexp(1, -10)
                                    : std::ldexp(1, -25);
        double usual = 0;
        for (double v : want) usual += v * v;
        usual = std::sqrt(usual / double(source.tokens.size() * to.kv_heads));
        for (int64_t row = 0; row < source.tokens.size() * to.kv_heads; ++row) {
          const auto got = target.Head(l, c, row / to.kv_heads, row % to.kv_heads);
          const double* expected = want.data() + row * to.head_dim;
          double norm = 0;
          for (int32_t d = 0; d < to.head_dim; ++d) norm += expected[d] * expected[d];
          for (int32_t d = 0; d < to.head_dim; ++d) {
            const double allowed = tolerance * std::max(std::sqrt(norm), usual) +
                                   RoundingOf(to.dtype) * std::abs(expected[d]) + smallest;
            ASSERT_NEAR(got[d], expected[d], allowed)
                << "layer " << l << " component " << int(c) << " row " << row << " dim " << d;
          }
        }
      }
    }
  }

  std::mt19937 rng_{20240611};
  std::unique_ptr<base::WorkerPool> workers_;
  std::shared_ptr<kv::BufferPool> pool_;
  std::unique_ptr<CpuBackend> backend_;
};

std::string Describe(const MapSpec& s) {
  return testing::PrintToString(std::vector<int>{
      s.source.layers, s.source.kv_heads, s.source.head_dim, int(s.source.dtype), s.target.layers,
      s.target.kv_heads, s.target.head_dim, int(s.target.dtype), int(s.support), s.top_k,
      int(s.key_norm), s.source_rope.rotary_dim, s.target_rope.rotary_dim});
}

TEST_P(CpuBackendTest, AgreesWithTheFormulaInDoubleOverRandomGeometries) {
  for (int round = 0; round < 60; ++round) {
    const auto seed = static_cast<uint32_t>(rng_());
    std::mt19937 rng(seed);
    const MapSpec spec = RandomSpec(rng);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " " << Describe(spec));
    const auto layout = static_cast<Layout>(rng() % 3);
    const int64_t tokens = std::vector<int64_t>{1, 17, 32, 70}[rng() % 4];
    const auto mapper = MakeMapper(spec, rng);
    const auto source = Cache::Make(spec.source, tokens, layout, 0.02f, rng);
    const auto target =
        Cache::Make(spec.target, tokens, static_cast<Layout>(rng() % 3), 0.05f, rng);
    const Tile tile(*source, 1000);
    const bool f32 = rng() % 2 == 0;
    const auto resident = Resident(mapper, f32 ? Precision::kF32 : Precision::kBf16);
    const auto checks = Map(*resident, tile.source, *target, tokens);
    ASSERT_TRUE(checks.ok()) << checks.status();
    EXPECT_EQ(checks->non_finite, 0u);
    EXPECT_EQ(checks->saturated, 0u);
    ExpectMatches(*mapper, tile.source, *target, f32 ? 1e-5 : std::ldexp(1, -7));
    if (HasFatalFailure()) return;
  }
}

TEST_P(CpuBackendTest, KeysGivenUnrotatedAreNotStripped) {
  MapSpec spec{.source_rope = MakeRope(32, Pairing::kHalf, 1),
               .target_rope = MakeRope(32, Pairing::kHalf, 1)};
  const auto mapper = MakeMapper(spec, rng_);
  const auto source = Cache::Make(spec.source, 5, Layout::kTokenMajor, 1, rng_);
  const auto target = Cache::Make(spec.target, 5, Layout::kTokenMajor, 1, rng_);
  Tile tile(*source, 700);
  tile.source.keys_are_roped = false;
  ASSERT_TRUE(Map(*Resident(mapper), tile.source, *target, 5).ok());
  ExpectMatches(*mapper, tile.source, *target, std::ldexp(1, -7));
}

TEST_P(CpuBackendTest, PositionSpaceMappersNeitherStripNorApply) {
  MapSpec spec{.strip_rope = false,
               .source_rope = MakeRope(32, Pairing::kHalf, 1),
               .target_rope = MakeRope(32, Pairing::kHalf, 1)};
  const auto mapper = MakeMapper(spec, rng_);
  const auto resident = Resident(mapper);
  const auto source = Cache::Make(spec.source, 5, Layout::kTokenMajor, 1, rng_);
  const auto target = Cache::Make(spec.target, 5, Layout::kTokenMajor, 1, rng_);
  Tile tile(*source, 700);
  ASSERT_TRUE(Map(*resident, tile.source, *target, 5).ok());
  ExpectMatches(*mapper, tile.source, *target, std::ldexp(1, -7));

  tile.source.keys_are_roped = false;
  const auto refused = backend_->Prepare(*resident, tile.source);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("keys_are_roped"));
}

// Enough tokens for more than one unit of 512, and heads for more than one unit of 256 columns.
MapSpec LargeSpec(Support support) {
  return {.source = {.layers = 2, .kv_heads = 4, .head_dim = 96},
          .target = {.layers = 2, .kv_heads = 4, .head_dim = 80},
          .support = support,
          .key_norm = KeyNorm::Kind::kKNorm,
          .source_rope = MakeRope(96, Pairing::kHalf, 1),
          .target_rope = MakeRope(40, Pairing::kInterleaved, 1.2)};
}

// What the CPU finishes in registers; a head that is not finite sends its block the long way round.
MapSpec UsualSpec(Support support, int32_t head_dim) {
  return {.source = {.layers = 2, .kv_heads = 4, .head_dim = head_dim},
          .target = {.layers = 2, .kv_heads = 4, .head_dim = head_dim},
          .support = support,
          .key_norm = KeyNorm::Kind::kKNorm,
          .source_rope = MakeRope(head_dim, Pairing::kHalf, 1),
          .target_rope = MakeRope(head_dim, Pairing::kHalf, 1.2)};
}

bool SameTokens(const Cache& a, const Cache& b, int64_t tokens) {
  const int64_t bytes = tokens * a.view.row() * int64_t(tensor::ByteSize(a.view.dtype));
  for (size_t i = 0; i < a.view.planes.size(); ++i) {
    if (std::memcmp(a.view.planes[i].base, b.view.planes[i].base, bytes) != 0) return false;
  }
  return true;
}

TEST_P(CpuBackendTest, BytesDoNotDependOnTheTilingOrTheNeighbours) {
  for (Support support : {Support::kFull, Support::kHeadLocal}) {
    for (Precision precision : {Precision::kBf16, Precision::kF32}) {
      const MapSpec spec = LargeSpec(support);
      const auto resident = Resident(MakeMapper(spec, rng_), precision);
      constexpr int64_t kTokens = 550;
      const auto source = Cache::Make(spec.source, kTokens, Layout::kTokenMajor, 1, rng_);
      const Tile tile(*source, 3);
      const auto whole = Cache::Make(spec.target, kTokens, Layout::kTokenMajor, 1, rng_);
      ASSERT_TRUE(Map(*resident, tile.source, *whole, kTokens).ok());
      for (int64_t tile_tokens : {1, 17, 256}) {
        // Single tokens take a while: the first forty are enough.
        TileSource some = tile.source;
        some.tokens.end = tile_tokens == 1 ? 40 : kTokens;
        some.positions = some.positions.first(some.tokens.end);
        const auto parts = Cache::Make(spec.target, kTokens, Layout::kTokenMajor, 1, rng_);
        ASSERT_TRUE(Map(*resident, some, *parts, tile_tokens).ok());
        EXPECT_TRUE(SameTokens(*parts, *whole, some.tokens.end)) << "tiles of " << tile_tokens;
      }
    }
  }
}

TEST_P(CpuBackendTest, LayersMayBeMappedOneByOne) {
  const MapSpec spec = LargeSpec(Support::kFull);
  const auto resident = Resident(MakeMapper(spec, rng_));
  const auto source = Cache::Make(spec.source, 40, Layout::kTokenMajor, 1, rng_);
  const Tile tile(*source, 0);
  const auto whole = Cache::Make(spec.target, 40, Layout::kPaged, 1, rng_);
  auto parts = Cache::Make(spec.target, 40, Layout::kPaged, 1, rng_);
  parts->bytes = whole->bytes;
  parts->pages = whole->pages;
  ASSERT_TRUE(Map(*resident, tile.source, *whole, 40).ok());
  const auto prepared = backend_->Prepare(*resident, tile.source).value();
  for (int32_t l : {1, 0}) {
    ASSERT_TRUE(backend_->MapLayers(*resident, *prepared, {l, l + 1}, parts->view, 0, Never).ok());
  }
  EXPECT_TRUE(parts->bytes == whole->bytes);
}

TEST_P(CpuBackendTest, CallsAtTheSameTimeGiveTheBytesOfCallsAlone) {
  constexpr int kCallers = 8;
  const MapSpec spec = LargeSpec(Support::kFull);
  const auto resident = Resident(MakeMapper(spec, rng_));
  std::vector<std::unique_ptr<Cache>> sources, alone, together;
  for (int i = 0; i < kCallers; ++i) {
    const int64_t tokens = 1 + 13 * i;
    sources.push_back(Cache::Make(spec.source, tokens, Layout::kTokenMajor, 1, rng_));
    alone.push_back(Cache::Make(spec.target, tokens, Layout::kTokenMajor, 1, rng_));
    together.push_back(Cache::Make(spec.target, tokens, Layout::kTokenMajor, 1, rng_));
    const Tile tile(*sources[i], i);
    ASSERT_TRUE(Map(*resident, tile.source, *alone[i], tokens).ok());
  }
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&, i] {
      const Tile tile(*sources[i], i);
      EXPECT_TRUE(Map(*resident, tile.source, *together[i], 20).ok());
    });
  }
  for (auto& caller : callers) caller.join();
  for (int i = 0; i < kCallers; ++i) EXPECT_TRUE(together[i]->bytes == alone[i]->bytes) << i;
}

TEST_P(CpuBackendTest, WhatUsedTheWorkspaceBeforeChangesNothing) {
  const MapSpec spec = LargeSpec(Support::kFull);
  const auto resident = Resident(MakeMapper(spec, rng_));
  const auto source = Cache::Make(spec.source, 33, Layout::kTokenMajor, 1, rng_);
  const Tile tile(*source, 0);
  const auto clean = Cache::Make(spec.target, 33, Layout::kTokenMajor, 1, rng_);
  const auto poisoned = Cache::Make(spec.target, 33, Layout::kTokenMajor, 1, rng_);
  ASSERT_TRUE(Map(*resident, tile.source, *clean, 33).ok());
  ASSERT_GT(pool_->bytes_idle(), 0u);
  {
    const auto scratch = pool_->Acquire(backend_->CallBytes(*resident, 33)).value();
    const auto features = pool_->Acquire(pool_->bytes_idle()).value();
    ASSERT_EQ(pool_->bytes_idle(), 0u);
    for (const auto& buffer : {scratch, features}) {
      std::memset(buffer->data(), 0xff, buffer->size());
    }
  }
  const auto checks = Map(*resident, tile.source, *poisoned, 33);
  ASSERT_TRUE(checks.ok());
  EXPECT_EQ(checks->non_finite, 0u);
  EXPECT_TRUE(poisoned->bytes == clean->bytes);
}

TEST_P(CpuBackendTest, WorkspaceIsWhatWasAnnounced) {
  MapSpec spec = LargeSpec(Support::kFull);
  for (bool rotated : {true, false}) {
    if (!rotated) spec.source_rope = spec.target_rope = MakeRope(0, Pairing::kHalf, 1);
    const auto resident = Resident(MakeMapper(spec, rng_));
    for (int64_t tokens : {1, 33, 550}) {
      const auto source = Cache::Make(spec.source, tokens, Layout::kTokenMajor, 1, rng_);
      const Tile tile(*source, 0);
      const auto prepared = backend_->Prepare(*resident, tile.source).value();
      EXPECT_EQ(prepared->bytes(), backend_->TileBytes(*resident, tokens, SourceUse::kAtOnce));
      const uint64_t tables = rotated ? tokens * 6 * (96 + 40) : 0;
      EXPECT_EQ(prepared->bytes(), pool_->bytes_in_use() + tables);
    }
  }
  EXPECT_EQ(pool_->bytes_in_use(), 0u);
}

TEST_P(CpuBackendTest, ANaNInTheSourceTouchesItsOwnTokenOnly) {
  for (const MapSpec& spec : {LargeSpec(Support::kFull), LargeSpec(Support::kHeadLocal),
                              UsualSpec(Support::kFull, 64), UsualSpec(Support::kHeadLocal, 128)}) {
    const Support support = spec.support;
    const auto resident = Resident(MakeMapper(spec, rng_));
    const auto source = Cache::Make(spec.source, 40, Layout::kTokenMajor, 1, rng_);
    const Tile tile(*source, 0);
    const auto clean = Cache::Make(spec.target, 40, Layout::kTokenMajor, 1, rng_);
    const auto spoilt = Cache::Make(spec.target, 40, Layout::kTokenMajor, 1, rng_);
    ASSERT_TRUE(Map(*resident, tile.source, *clean, 40).ok());
    std::vector<float> nan(spec.source.head_dim, 1.0f);
    nan[7] = std::numeric_limits<float>::quiet_NaN();
    for (int32_t l = 0; l < spec.source.layers; ++l) {
      for (Component c : kv::kComponents) kv::WriteHead(source->view, l, c, 21, 1, nan.data());
    }
    const auto checks = Map(*resident, tile.source, *spoilt, 40);
    ASSERT_TRUE(checks.ok());
    const int64_t heads = support == Support::kFull ? spec.target.kv_heads : 1;
    EXPECT_EQ(checks->non_finite, uint64_t(2 * spec.target.layers * heads * spec.target.head_dim));
    for (int32_t l = 0; l < spec.target.layers; ++l) {
      for (Component c : kv::kComponents) {
        for (int64_t t = 0; t < 40; ++t) {
          for (int32_t h = 0; h < spec.target.kv_heads; ++h) {
            const bool hit = t == 21 && (support == Support::kFull || h == 1);
            EXPECT_EQ(clean->Head(l, c, t, h) == spoilt->Head(l, c, t, h), !hit);
          }
        }
      }
    }
  }
}

TEST_P(CpuBackendTest, BytesDoNotDependOnTheAlignmentOfTheTarget) {
  for (int32_t head_dim : {64, 128}) {
    const MapSpec spec = UsualSpec(Support::kHeadLocal, head_dim);
    const auto resident = Resident(MakeMapper(spec, rng_));
    const auto source = Cache::Make(spec.source, 40, Layout::kTokenMajor, 1, rng_);
    const Tile tile(*source, 0);
    const auto aligned = Cache::Make(spec.target, 40, Layout::kTokenMajor, 1, rng_);
    const auto odd = Cache::Make(spec.target, 40, Layout::kTokenMajor, 1, rng_);
    odd->bytes.resize(odd->bytes.size() + 2);
    for (size_t i = 0; i < odd->view.planes.size(); ++i) {
      const auto offset = aligned->view.planes[i].base - aligned->bytes.data();
      odd->view.planes[i].base = odd->bytes.data() + offset + 2;
    }
    ASSERT_TRUE(Map(*resident, tile.source, *aligned, 40).ok());
    ASSERT_TRUE(Map(*resident, tile.source, *odd, 40).ok());
    EXPECT_TRUE(SameTokens(*aligned, *odd, 40));
  }
}

TEST_P(CpuBackendTest, HugeFiniteWeightsAreCountedAsNonFinite) {
  for (KeyNorm::Kind kind : {KeyNorm::Kind::kNone, KeyNorm::Kind::kKNorm}) {
    for (Precision precision : {Precision::kBf16, Precision::kF32}) {
      MapSpec spec{.weight_dtype = DType::kF32, .key_norm = kind};
      const auto mapper = MakeMapper(spec, rng_);
      std::vector<float> huge(mapper->keys[1].weight.data.size() / 4, 3e38f);
      mapper->keys[1].weight.data = std::as_bytes(std::span(huge));
      const auto source = Cache::Make(spec.source, 3, Layout::kTokenMajor, 1, rng_);
      const auto target = Cache::Make(spec.target, 3, Layout::kTokenMajor, 1, rng_);
      const Tile tile(*source, 0);
      const auto checks = Map(*Resident(mapper, precision), tile.source, *target, 3);
      ASSERT_TRUE(checks.ok());
      EXPECT_GT(checks->non_finite, 0u);
    }
  }
}

// Whatever pieces the weights come in, and in whatever order.
TEST_P(CpuBackendTest, PacksWeightsAsVerificationShowsThem) {
  for (DType dtype : {DType::kBf16, DType::kF32}) {
    MapSpec spec{.weight_dtype = dtype};
    spec.source.head_dim = 48;  // one whole step and one of 16 rows
    spec.target.head_dim = 40;
    const auto mapper = MakeMapper(spec, rng_);
    const VerifyWeights verify = [&](absl::FunctionRef<void(std::span<const std::byte>)> visit) {
      for (const auto* maps : {&mapper->values, &mapper->keys}) {
        for (const auto& map : *maps) {
          std::vector<std::span<const std::byte>> pieces;
          for (auto rest = map.weight.data; !rest.empty();) {
            pieces.push_back(rest.first(std::min<size_t>(rest.size(), 1 + rng_() % 9000)));
            rest = rest.subspan(pieces.back().size());
          }
          std::shuffle(pieces.begin(), pieces.end(), rng_);
          for (const auto& piece : pieces) visit(piece);
        }
      }
      return absl::OkStatus();
    };
    const auto source = Cache::Make(spec.source, 5, Layout::kTokenMajor, 1, rng_);
    const Tile tile(*source, 0);
    for (Precision precision : {Precision::kBf16, Precision::kF32}) {
      const auto shown = backend_->MakeResident(mapper, precision, verify);
      ASSERT_TRUE(shown.ok()) << shown.status();
      const auto a = Cache::Make(spec.target, 5, Layout::kTokenMajor, 1, rng_);
      const auto b = Cache::Make(spec.target, 5, Layout::kTokenMajor, 1, rng_);
      ASSERT_TRUE(Map(**shown, tile.source, *a, 5).ok());
      ASSERT_TRUE(Map(*Resident(mapper, precision), tile.source, *b, 5).ok());
      for (int32_t l = 0; l < spec.target.layers; ++l) {
        for (Component c : kv::kComponents) {
          for (int64_t t = 0; t < 5; ++t) {
            ASSERT_EQ(a->Head(l, c, t, 0), b->Head(l, c, t, 0)) << "layer " << l << " token " << t;
          }
        }
      }
    }
  }
}

TEST_P(CpuBackendTest, MapsMayShareTheirWeights) {
  const auto mapper = MakeMapper(MapSpec{}, rng_);
  mapper->values[1].weight = mapper->keys[1].weight;
  mapper->values[1].sources = mapper->keys[1].sources;
  EXPECT_TRUE(backend_->MakeResident(mapper, Precision::kBf16, {}).ok());
}

TEST_P(CpuBackendTest, IsNotResidentUnlessAllWasVerified) {
  const auto mapper = MakeMapper(MapSpec{}, rng_);
  const auto with = [&](const VerifyWeights& verify) {
    return backend_->MakeResident(mapper, Precision::kBf16, verify).status();
  };
  EXPECT_EQ(with([](auto) { return absl::DataLossError("chunk 3"); }),
            absl::DataLossError("chunk 3"));
  EXPECT_EQ(with([](auto) { return absl::OkStatus(); }).code(), absl::StatusCode::kInternal);
}

TEST_P(CpuBackendTest, RefusesNonFiniteTensorsByName) {
  for (DType dtype : {DType::kBf16, DType::kF32}) {
    MapSpec spec{.weight_dtype = dtype};
    const auto mapper = MakeMapper(spec, rng_);
    const auto spoil = [&](const mapper::TensorRef& tensor, int64_t element, float value) {
      auto* bytes = const_cast<std::byte*>(tensor.data.data());
      tensor::EncodeRow(dtype, &value, 1, bytes + element * tensor::ByteSize(dtype), 1);
    };
    spoil(mapper->values[1].bias, 40, -std::numeric_limits<float>::infinity());
    auto refused = backend_->MakeResident(mapper, Precision::kBf16, {});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr("values[1].bias: expected finite numbers"));
    EXPECT_THAT(refused.status().message(), HasSubstr("head 1"));

    spoil(mapper->keys[2].weight, 77, std::numeric_limits<float>::quiet_NaN());
    refused = backend_->MakeResident(mapper, Precision::kF32, {});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(), HasSubstr("keys[2].weight: expected finite numbers"));
    EXPECT_THAT(refused.status().message(), HasSubstr("head 0"));
  }
}

TEST_P(CpuBackendTest, ChecksCountSaturationAndTheLargestMagnitude) {
  MapSpec spec{.key_norm = KeyNorm::Kind::kScale};
  spec.target.dtype = DType::kF16;
  const auto mapper = MakeMapper(spec, rng_);
  for (auto& row : mapper->key_norm.value_scale) std::fill(row.begin(), row.end(), 1e6f);
  const auto source = Cache::Make(spec.source, 9, Layout::kTokenMajor, 1, rng_);
  const auto target = Cache::Make(spec.target, 9, Layout::kTokenMajor, 1, rng_);
  const Tile tile(*source, 0);
  const auto checks = Map(*Resident(mapper, Precision::kF32), tile.source, *target, 9);
  ASSERT_TRUE(checks.ok());
  double largest = 0;
  uint64_t saturated = 0;
  for (int32_t l = 0; l < spec.target.layers; ++l) {
    for (Component c : kv::kComponents) {
      for (double v : Reference(*mapper, tile.source, l, c)) {
        largest = std::max(largest, std::abs(v));
        saturated += std::abs(v) >= 65520;
      }
    }
  }
  EXPECT_EQ(checks->non_finite, 0u);
  EXPECT_EQ(checks->saturated, saturated);
  EXPECT_NEAR(checks->max_abs, largest, largest * 1e-4);
}

TEST_P(CpuBackendTest, CancelStopsBetweenUnits) {
  const MapSpec spec = LargeSpec(Support::kFull);
  const auto resident = Resident(MakeMapper(spec, rng_));
  const auto source = Cache::Make(spec.source, 550, Layout::kTokenMajor, 1, rng_);
  const auto target = Cache::Make(spec.target, 550, Layout::kTokenMajor, 1, rng_);
  const Tile tile(*source, 0);
  const auto prepared = backend_->Prepare(*resident, tile.source).value();
  std::atomic<int> polls{0};
  const auto third_time = [&] { return ++polls >= 3; };
  const auto stopped =
      backend_->MapLayers(*resident, *prepared, {0, 2}, target->view, 0, third_time);
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
  // Each worker may have been asking while the third answer came.
  EXPECT_LE(polls, 3 + workers_->threads());
}

TEST_P(CpuBackendTest, RefusesSourcesAndTargetsOfAnotherShape) {
  const MapSpec spec = LargeSpec(Support::kFull);
  const auto resident = Resident(MakeMapper(spec, rng_));
  model::KvGeometry other = spec.source;
  other.kv_heads = 3;
  const auto wrong = Cache::Make(other, 4, Layout::kTokenMajor, 1, rng_);
  auto refused = backend_->Prepare(*resident, Tile(*wrong, 0).source);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(), "source.kv_heads: expected 4, got 3");

  const auto source = Cache::Make(spec.source, 4, Layout::kTokenMajor, 1, rng_);
  const Tile tile(*source, 0);
  TileSource beyond = tile.source;
  beyond.tokens = {2, 6};
  EXPECT_THAT(backend_->Prepare(*resident, beyond).status().message(),
              HasSubstr("source.tokens: expected a range within [0, 4), got [2, 6)"));
  const auto prepared = backend_->Prepare(*resident, tile.source).value();
  const auto target = Cache::Make(spec.target, 4, Layout::kTokenMajor, 1, rng_);
  const auto map = [&](kv::LayerRange layers, const kv::KvView& view, int64_t begin) {
    return std::string(
        backend_->MapLayers(*resident, *prepared, layers, view, begin, Never).status().message());
  };
  EXPECT_EQ(map({0, 2}, target->view, 1), "target.tokens: expected room for [1, 5), got 4");
  EXPECT_EQ(map({0, 3}, target->view, 0), "layers: expected a range within [0, 2), got [0, 3)");
  EXPECT_EQ(map({0, 2}, wrong->view, 0), "target.kv_heads: expected 4, got 3");
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuBackendTest, testing::ValuesIn(cpu::SupportedIsas()),
                         [](const auto& info) {
                           std::string name = cpu::KernelsFor(info.param).name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CpuIsaTest, EveryMachineHasThePortableKernels) {
  EXPECT_EQ(cpu::SupportedIsas().back(), Isa::kPortable);
}

}  // namespace
}  // namespace kvbridge::device
