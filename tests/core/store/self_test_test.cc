#include "core/store/self_test.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/store/hooked_backend.h"

namespace kvbridge::store {
namespace {

using artifact::SyntheticMapper;
using artifact::SyntheticOptions;
using device::Precision;
using Kind = mapper::KeyNorm::Kind;

class SelfTestTest : public ::testing::Test {
 protected:
  absl::Status Run(std::shared_ptr<const mapper::Mapper> mapper,
                   Precision precision = Precision::kBf16) {
    return SelfTest(&backend_, *backend_.MakeResident(std::move(mapper), precision, {}).value());
  }
  void ExpectFailure(const char* message) {
    const absl::Status status = Run(SyntheticMapper());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_NE(status.message().find(message), absl::string_view::npos) << status;
  }
  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
  HookedBackend backend_{pool_.get()};
};

TEST_F(SelfTestTest, EveryKindOfMapperPassesInBothPrecisions) {
  for (const auto precision : {Precision::kBf16, Precision::kF32}) {
    for (const auto support : {mapper::Support::kFull, mapper::Support::kHeadLocal}) {
      for (const auto kind : {Kind::kNone, Kind::kKNorm, Kind::kScale}) {
        const absl::Status status =
            Run(SyntheticMapper({.cross = kind == mapper::KeyNorm::Kind::kNone,
                                 .support = support,
                                 .key_norm = kind}),
                precision);
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

TEST_F(SelfTestTest, NetworksPassInBothPrecisions) {
  for (const auto precision : {Precision::kBf16, Precision::kF32}) {
    for (const auto support :
         {mapper::Support::kFull, mapper::Support::kHeadLocal, mapper::Support::kMlp}) {
      const absl::Status status =
          Run(SyntheticMapper({.cross = true, .support = support, .hidden = {40, 3}}), precision);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST_F(SelfTestTest, YarnFactorsInterleavedPairsAndMappingAsCachedPass) {
  const auto mapper = SyntheticMapper();
  mapper->source.rope.params.attention_factor = 1.139;
  mapper->target.rope.params.attention_factor = 1.347;
  mapper->target.rope.params.pairing = model::Pairing::kInterleaved;
  mapper->target.rope.layer_overrides[2] = {.inv_freq = {0.5}, .rotary_dim = 2};
  EXPECT_TRUE(Run(mapper, Precision::kF32).ok());
  const auto as_cached = SyntheticMapper();
  as_cached->strip_rope = false;
  EXPECT_TRUE(Run(as_cached, Precision::kF32).ok());
}

TEST_F(SelfTestTest, AShortContextBoundsThePositions) {
  const auto mapper = SyntheticMapper();
  mapper->target.rope.max_position = 2;
  EXPECT_TRUE(Run(mapper).ok());
}

TEST_F(SelfTestTest, OneWrongElementIsFound) {
  backend_.after_map = [](const kv::KvView& view, device::TileChecks*) {
    float* row = reinterpret_cast<float*>(view.Row(2, kv::Component::kValue, view.tokens - 1));
    row[3] += 2.0f;
  };
  ExpectFailure("value head 0 of layer 2");
}

TEST_F(SelfTestTest, NonFiniteElementsAreFound) {
  backend_.after_map = [](const kv::KvView&, device::TileChecks* checks) {
    checks->non_finite = 1;
  };
  ExpectFailure("expected finite elements");
}

TEST_F(SelfTestTest, RunsThatDifferAreFound) {
  int run = 0;
  backend_.after_map = [&](const kv::KvView& view, device::TileChecks*) {
    float* row = reinterpret_cast<float*>(view.Row(1, kv::Component::kKey, 0));
    if (++run == 2) row[0] = std::nextafter(row[0], 1000.0f);
  };
  ExpectFailure("two runs");
}

}  // namespace
}  // namespace kvbridge::store
