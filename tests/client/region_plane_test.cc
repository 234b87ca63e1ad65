// The client's shared memory with a real kvbridged in this process: the bytes that chunks would
// get, no copy where caches lie in pools, and a named reason where there is no shared memory.
#include "client/cpp/region_plane.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <thread>

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/client.h"
#include "client/cpp/pool.h"
#include "tests/core/memory/client_shm.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::client {
namespace {

namespace fs = std::filesystem;
using server::DenseCache;
using server::HarnessOptions;
using server::ServerHarness;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 70;
constexpr int32_t kPageTokens = 16;

bool Eventually(const std::function<bool()>& holds) {
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (!holds()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

int64_t Entries(const char* folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

// Of regions, on either side.
int64_t SharedMaps() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int64_t count = 0;
  while (std::getline(maps, line)) count += line.find("memfd:") != std::string::npos;
  return count;
}

template <typename View, typename Byte>
View ViewOf(DenseCache& cache, const v1::ModelSpec& model) {
  const kv::KvView of = cache.View();
  View view;
  view.shape = {.element_type = model.geometry().element_type(),
                .layers = of.layers,
                .kv_heads = of.kv_heads,
                .head_dim = of.head_dim,
                .tokens = of.tokens};
  for (const kv::Plane& plane : of.planes) view.planes.push_back(plane.base);
  view.token_stride = of.planes[0].token_stride;
  view.head_stride = of.planes[0].head_stride;
  return view;
}

// A harness, a source, and the answer that chunks get.
class RegionPlaneTest : public ::testing::Test {
 protected:
  explicit RegionPlaneTest(HarnessOptions options = {})
      : harness_(std::move(options)),
        options_{.header = harness_.Header(kTokens), .deadline = absl::Seconds(60)},
        source_(harness_.mapper().source.geometry, kTokens),
        target_(harness_.mapper().target.geometry, kTokens),
        inline_(harness_.mapper().target.geometry, kTokens) {
    options_.header.mutable_source_selection()->clear_location();
    options_.header.mutable_target_selection()->clear_location();
    source_.Randomise(1);
    client_ = Client::Create({.target = harness_.server().grpc_addresses()[0]}).value();
    TransferOptions chunks = options_;
    chunks.plane = PlaneChoice::kInline;
    const TransferResult result = Map(chunks, Source(), Target(inline_));
    EXPECT_TRUE(result.applied()) << result.reason << ": " << result.detail;
    EXPECT_EQ(result.plane_reason, "asked");
  }

  TransferResult Map(const TransferOptions& options, const SourceView& source,
                     const TargetView& target) {
    return client_->Transfer(options, source, target).value();
  }
  SourceView Source() {
    return ViewOf<SourceView, const std::byte>(source_, options_.header.source());
  }
  TargetView Target(DenseCache& cache) {
    return ViewOf<TargetView, std::byte>(cache, options_.header.target());
  }

  // Room for the tokens and two pages more, [pages, tokens, heads, dim] per plane; in a region of
  // its own unless one is given.
  static std::shared_ptr<const Pool> MakePool(
      const v1::ModelSpec& model, std::shared_ptr<const SharedRegion> region = nullptr) {
    const v1::KvGeometry& geometry = model.geometry();
    PoolLayout layout;
    layout.model = model;
    layout.tokens_per_page = kPageTokens;
    layout.pages = 7;
    layout.head_stride =
        geometry.head_dim() * static_cast<int64_t>(ElementBytes(geometry.element_type()));
    layout.token_stride = layout.head_stride * geometry.kv_heads();
    layout.page_stride = layout.token_stride * kPageTokens;
    const size_t plane = static_cast<size_t>(layout.page_stride * layout.pages);
    if (region == nullptr) {
      region = SharedRegion::Create(plane * 2 * geometry.layers()).value();
    }
    for (int32_t i = 0; i < 2 * geometry.layers(); ++i) {
      layout.planes.push_back(region->bytes().data() + i * plane);
    }
    return Pool::Create(std::move(layout), {std::move(region)}).value();
  }
  SourceView PooledSource() {
    const auto pool = MakePool(options_.header.source());
    CopyTokens(Source(), pool->Target(kPages, kTokens).value(), 0, kTokens);
    return pool->Source(kPages, kTokens).value();
  }
  TargetView PooledTarget() {
    return MakePool(options_.header.target())->Target(kPages, kTokens).value();
  }
  // What lies in a pool's pages, as target_.
  void Gather(const TargetView& from) {
    CopyTokens(from.pool->Source(from.pages, kTokens).value(), Target(target_), 0, kTokens);
  }
  // Tokens [begin, covered) of target_ are what chunks gave.
  void ExpectInlineBytes(int64_t begin = 0) {
    for (int32_t layer = 0; layer < target_.geometry.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        EXPECT_EQ(target_.Rows(layer, c, {begin, kTokens - 1}),
                  inline_.Rows(layer, c, {begin, kTokens - 1}))
            << "layer " << layer;
      }
    }
  }

  const std::vector<int32_t> kPages = {5, 0, 6, 2, 3};
  ServerHarness harness_;
  TransferOptions options_;
  DenseCache source_;
  DenseCache target_;
  DenseCache inline_;
  std::unique_ptr<Client> client_;
};

TEST_F(RegionPlaneTest, PagesGetTheBytesThatChunksGet) {
  const TargetView target = PooledTarget();
  const TransferResult result = Map(options_, PooledSource(), target);
  ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  EXPECT_EQ(result.plane, v1::PLANE_REGION) << result.plane_detail;
  EXPECT_EQ(result.plane_reason, "");
  EXPECT_EQ(result.bytes_sent + result.bytes_received, 0);
  EXPECT_EQ(result.covered_tokens, kTokens - 1);
  Gather(target);
  ExpectInlineBytes();
  EXPECT_EQ(client_->counters().planes.at("region"), 1u);
  EXPECT_EQ(client_->counters().plane_fallbacks.at("asked"), 1u);
}

TEST_F(RegionPlaneTest, PagesOfANamedSegmentGetTheBytesThatChunksGet) {
  const memory::ClientShm source_shm(memory::ShmPrefix() + "source", 1 << 20);
  const memory::ClientShm target_shm(memory::ShmPrefix() + "target", (1 << 20) + 100);
  const auto source_region = SharedRegion::Named("/" + source_shm.name(), /*writable=*/false);
  const auto target_region = SharedRegion::Named(target_shm.name());
  ASSERT_TRUE(source_region.ok() && target_region.ok());
  EXPECT_EQ((*target_region)->bytes().size(), size_t{1} << 20) << "whole pages";
  const auto source = MakePool(options_.header.source(), *source_region);
  CopyTokens(Source(), source->Target(kPages, kTokens).value(), 0, kTokens);
  const auto target =
      MakePool(options_.header.target(), *target_region)->Target(kPages, kTokens).value();
  const TransferResult result = Map(options_, source->Source(kPages, kTokens).value(), target);
  ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  EXPECT_EQ(result.plane, v1::PLANE_REGION) << result.plane_detail;
  Gather(target);
  ExpectInlineBytes();
}

TEST_F(RegionPlaneTest, ANameThatIsNotTheTenantsSendsChunks) {
  const memory::ClientShm shm(memory::ShmPrefix("another"), 1 << 20);
  const auto region = SharedRegion::Named(shm.name()).value();
  const auto source = MakePool(options_.header.source(), region);
  const TransferResult result =
      Map(options_, source->Source(kPages, kTokens).value(), PooledTarget());
  EXPECT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  EXPECT_EQ(result.plane, v1::PLANE_INLINE);
  EXPECT_EQ(result.plane_reason, "refused");
  const absl::Status none = SharedRegion::Named("/kvbridge-test-none").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.message()), HasSubstr("shared memory /kvbridge-test-none: "));
}

// The pages are another client's, as those of an engine in another process would be.
TEST_F(RegionPlaneTest, TheAnswerMayGoToPagesOfAnother) {
  auto engine = Client::Create({.target = harness_.server().grpc_addresses()[0]}).value();
  for (const auto plane : {PlaneChoice::kRegion, PlaneChoice::kInline}) {
    const TargetView pages = PooledTarget();
    *options_.header.mutable_target_selection()->mutable_pool() = engine->Locate(pages).value();
    TargetView shape_only;
    shape_only.shape = pages.shape;
    options_.plane = plane;
    const TransferResult result = Map(options_, PooledSource(), shape_only);
    ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
    EXPECT_EQ(result.plane, plane == PlaneChoice::kRegion ? v1::PLANE_REGION : v1::PLANE_INLINE);
    EXPECT_EQ(result.bytes_received, 0);
    Gather(pages);
    ExpectInlineBytes();
  }
}

TEST_F(RegionPlaneTest, OnlyPagesOfAPoolHaveAPlace) {
  EXPECT_EQ(client_->Locate(Target(target_)).status().code(), absl::StatusCode::kInvalidArgument);
  auto elsewhere = Client::Create({.target = "127.0.0.1:1"}).value();
  const absl::Status down = elsewhere->Locate(PooledTarget()).status();
  EXPECT_EQ(down.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(down.message()), HasSubstr("session_lost: "));
}

TEST_F(RegionPlaneTest, PagesGoInChunksToo) {
  options_.plane = PlaneChoice::kInline;
  const TargetView target = PooledTarget();
  const TransferResult result = Map(options_, PooledSource(), target);
  ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  EXPECT_EQ(result.plane, v1::PLANE_INLINE);
  Gather(target);
  ExpectInlineBytes();
}

TEST_F(RegionPlaneTest, CachesElsewhereAreCopiedAndTheirStagingIsUsedAgain) {
  for (int round = 0; round < 3; ++round) {
    std::fill(target_.bytes.begin(), target_.bytes.end(), std::byte{0});
    const TransferResult result = Map(options_, Source(), Target(target_));
    ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
    EXPECT_EQ(result.plane, v1::PLANE_REGION) << result.plane_detail;
    ExpectInlineBytes();
  }
}

TEST_F(RegionPlaneTest, LayersComeInOrderWhilePrefillGoesOn) {
  const SourceView source = PooledSource();
  const TargetView target = PooledTarget();
  options_.progress = std::make_shared<SourceProgress>();
  std::vector<int32_t> layers;
  options_.on_layers = [&](int32_t begin, int32_t end) {
    for (; begin < end; ++begin) layers.push_back(begin);
  };
  bool released = false;
  options_.on_source_released = [&] { released = true; };
  std::thread prefill([progress = options_.progress] {
    for (const int64_t tokens : {17, 40, 41, 70}) progress->Ready(tokens);
  });
  const TransferResult result = Map(options_, source, target);
  prefill.join();
  ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  EXPECT_EQ(result.plane, v1::PLANE_REGION);
  EXPECT_THAT(layers, ElementsAre(0, 1, 2));
  EXPECT_TRUE(released);
  Gather(target);
  ExpectInlineBytes();
}

TEST_F(RegionPlaneTest, PrefillThatStopsFallsBack) {
  options_.progress = std::make_shared<SourceProgress>();
  options_.progress->Ready(20);
  options_.progress->Close();
  const TransferResult result = Map(options_, PooledSource(), PooledTarget());
  EXPECT_EQ(result.outcome, v1::OUTCOME_FALLBACK_REPREFILL);
  EXPECT_EQ(result.reason, "shape_mismatch") << result.detail;
}

TEST_F(RegionPlaneTest, TheNextTurnMapsItsNewTokensOnly) {
  std::vector<int32_t> ids(kTokens);
  std::iota(ids.begin(), ids.end(), 100);
  std::vector<int32_t> before(ids.begin(), ids.begin() + 40);
  before[33] = 7;  // where histories diverge
  const TransferResult first = Map(options_, Source(), Target(target_));
  const MappedPrefix prefix = {.token_ids = before,
                               .artifact_digest = first.decision.artifact_digest(),
                               .salt = first.decision.salt(),
                               .hops = 1};
  options_.prefix = &prefix;
  options_.token_ids = ids;
  for (const auto plane : {PlaneChoice::kRegion, PlaneChoice::kInline}) {
    std::fill(target_.bytes.begin(), target_.bytes.end(), std::byte{0});
    options_.plane = plane;
    const TransferResult turn = Map(options_, Source(), Target(target_));
    ASSERT_TRUE(turn.applied()) << turn.reason << ": " << turn.detail;
    EXPECT_EQ(turn.first_token, 33);
    EXPECT_EQ(turn.covered_tokens, kTokens - 1);
    EXPECT_EQ(turn.decision.salt(), prefix.salt);
    ExpectInlineBytes(33);
    for (const char byte : target_.Rows(0, kv::Component::kKey, {0, 33})) EXPECT_EQ(byte, 0);
  }
}

TEST_F(RegionPlaneTest, WhatAnotherArtifactMappedIsMappedAgain) {
  const std::vector<int32_t> ids(kTokens, 1);
  const MappedPrefix prefix = {
      .token_ids = ids, .artifact_digest = std::string(64, '0'), .salt = "", .hops = 1};
  options_.prefix = &prefix;
  options_.token_ids = std::span(ids).first(60);
  const TransferResult result = Map(options_, Source(), Target(target_));
  ASSERT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  EXPECT_EQ(result.first_token, 0);
  ExpectInlineBytes();
}

TEST_F(RegionPlaneTest, NothingNewAsksNobody) {
  const std::vector<int32_t> ids(kTokens, 1);
  const MappedPrefix prefix = {
      .token_ids = ids, .artifact_digest = std::string(64, '0'), .salt = "salt", .hops = 1};
  options_.prefix = &prefix;
  options_.token_ids = ids;
  const TransferResult result = Map(options_, Source(), Target(target_));
  EXPECT_TRUE(result.applied());
  EXPECT_EQ(result.attempts, 0);
  EXPECT_EQ(result.covered_tokens, kTokens - 1);
  EXPECT_EQ(result.decision.salt(), "salt");
}

TEST_F(RegionPlaneTest, NothingIsLeftOfManyClients) {
  const auto once = [&] {
    client_ = Client::Create({.target = harness_.server().grpc_addresses()[0]}).value();
    EXPECT_EQ(Map(options_, PooledSource(), PooledTarget()).plane, v1::PLANE_REGION);
    client_.reset();
  };
  for (int i = 0; i < 3; ++i) once();
  const int64_t fds = Entries("/proc/self/fd");
  const int64_t maps = SharedMaps();
  const int64_t threads = Entries("/proc/self/task") + 10;  // gRPC's own come and go
  for (int i = 0; i < 40; ++i) once();
  EXPECT_TRUE(Eventually([&] {
    return Entries("/proc/self/fd") <= fds && SharedMaps() <= maps &&
           Entries("/proc/self/task") <= threads;
  })) << fds
      << " descriptors, " << maps << " maps, " << threads << " threads at most, now "
      << Entries("/proc/self/fd") << ", " << SharedMaps() << ", " << Entries("/proc/self/task");
}

class NoRegionsTest : public RegionPlaneTest {
 protected:
  NoRegionsTest()
      : RegionPlaneTest({.configure = [](v1::Config* config) {
          config->mutable_memory()->clear_socket();
          config->mutable_memory()->clear_named_shm();
        }}) {}
};

TEST_F(NoRegionsTest, ChunksGoAndTheResultSaysWhy) {
  const TargetView target = PooledTarget();
  const TransferResult result = Map(options_, PooledSource(), target);
  ASSERT_TRUE(result.applied());
  EXPECT_EQ(result.plane, v1::PLANE_INLINE);
  EXPECT_EQ(result.plane_reason, "not_offered");
  Gather(target);
  ExpectInlineBytes();
}

TEST_F(NoRegionsTest, InsistingFallsBack) {
  options_.plane = PlaneChoice::kRegion;
  const TransferResult result = Map(options_, Source(), Target(target_));
  EXPECT_EQ(result.outcome, v1::OUTCOME_FALLBACK_REPREFILL);
  EXPECT_EQ(result.reason, "transport");
  EXPECT_EQ(result.attempts, 0);
  EXPECT_THAT(result.detail, HasSubstr("not_offered"));
}

class SmallQuotaTest : public RegionPlaneTest {
 protected:
  SmallQuotaTest()
      : RegionPlaneTest({.configure = [](v1::Config* config) {
          config->mutable_memory()->set_max_bytes(4096);
        }}) {}
};

TEST_F(SmallQuotaTest, NoRoomSendsChunks) {
  const TransferResult result = Map(options_, Source(), Target(target_));
  ASSERT_TRUE(result.applied());
  EXPECT_EQ(result.plane_reason, "no_room") << result.plane_detail;
  ExpectInlineBytes();
}

}  // namespace
}  // namespace kvbridge::client
