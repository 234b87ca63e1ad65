// A target beside another kvbridged whose cache is the smaller one: it is mapped beside the source,
// and what the map made travels.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"

#include "core/kv/copy_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/held_transfer.h"
#include "tests/integration/region_client.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kPageTokens = 16;
constexpr int64_t kTokens = 150;  // ten pages, the last one partial
constexpr int32_t kPages = 10;

HarnessOptions LargeToSmall(std::function<void(v1::Config*)> configure) {
  HarnessOptions options;
  options.map.source.layers = 6;
  options.map.target.layers = 3;
  options.configure = std::move(configure);
  return options;
}

std::vector<int32_t> Shuffled(uint32_t seed) {
  std::vector<int32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
  return pages;
}

// Two servers with the same artifact. Their tiles, of 32 and of 48 tokens, never end together.
class MapSideTest : public ::testing::Test {
 protected:
  explicit MapSideTest(std::function<void(v1::Config*)> configure = {})
      : peer_(LargeToSmall([](v1::Config* c) { c->mutable_engine()->set_tile_tokens(48); })),
        edge_(LargeToSmall([&](v1::Config* c) {
          v1::PeerConfig& peer = *c->add_peers();
          peer.set_name("b");
          peer.set_address(peer_.server().grpc_addresses()[0]);
          if (configure) configure(c);
        })),
        cache_(edge_.mapper().source.geometry, kTokens),
        mover_(std::make_unique<RegionClient>(&edge_)),
        engine_(std::make_unique<RegionClient>(&peer_)) {
    cache_.Randomise(11);
    source_ = mover_->MakePool(edge_.mapper().source, memory::kEngineLayouts[1], kPages,
                               kPageTokens, /*writable=*/false);
    target_ = engine_->MakePool(edge_.mapper().target, memory::kEngineLayouts[3], kPages,
                                kPageTokens, /*writable=*/true);
    Fill({0, kTokens});
  }
  void TearDown() override {
    EXPECT_TRUE(edge_.Quiet());
    EXPECT_TRUE(peer_.Quiet());
    mover_.reset();
    engine_.reset();
    for (ServerHarness* server : {&edge_, &peer_}) {
      EXPECT_TRUE(Eventually([&] { return server->server().memory()->use().mapped_bytes == 0; }));
    }
  }

  // Tokens of the source's pages as the dense cache has them.
  void Fill(kv::TokenRange tokens) {
    const kv::KvView view = source_->View(kTokens, source_pages_);
    for (int32_t layer = 0; layer < view.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        kv::CopyRows(cache_.View(), layer, c, tokens, view, tokens.begin);
      }
    }
  }

  // From the edge's pages to the peer's.
  v1::TransferHeader Header() {
    v1::TransferHeader header = edge_.Header(kTokens);
    header.set_peer("b");
    source_->Locate(source_pages_, header.mutable_source_selection());
    target_->Locate(target_pages_, header.mutable_target_selection());
    return header;
  }

  // Whether the peer's pages hold, of these tokens, what one map of everything makes of them.
  bool Holds(kv::TokenRange tokens) {
    DenseCache expected(edge_.mapper().target.geometry, kTokens);
    EXPECT_TRUE(edge_.MapInProcess(cache_, expected).applied());
    const kv::KvView view = target_->View(kTokens, target_pages_);
    DenseCache got(expected.geometry, kTokens);
    for (int32_t layer = 0; layer < view.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        kv::CopyRows(view, layer, c, tokens, got.View(), tokens.begin);
        if (got.Rows(layer, c, tokens) != expected.Rows(layer, c, tokens)) return false;
      }
    }
    return true;
  }

  static std::string Bytes(const char* direction, const char* transport, int64_t bytes) {
    return absl::StrCat("kvbridge_payload_bytes_total{direction=\"", direction, "\",transport=\"",
                        transport, "\"} ", bytes, "\n");
  }
  int64_t SourceBytes(int64_t tokens) const {
    return tokens * edge_.mapper().source.geometry.token_bytes();
  }
  int64_t TargetBytes(int64_t tokens) const {
    return tokens * edge_.mapper().target.geometry.token_bytes();
  }

  ServerHarness peer_;
  ServerHarness edge_;
  DenseCache cache_;
  std::unique_ptr<RegionClient> mover_;
  std::unique_ptr<RegionClient> engine_;
  std::unique_ptr<PagedCache> source_;
  std::unique_ptr<PagedCache> target_;
  const std::vector<int32_t> source_pages_ = Shuffled(1);
  const std::vector<int32_t> target_pages_ = Shuffled(2);
};

TEST_F(MapSideTest, PagesAreMappedBesideTheSourceAndTheTargetsBytesTravel) {
  const CallResult got = edge_.Call(Header(), {});
  EXPECT_EQ(got.completed, 1);
  ASSERT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
  EXPECT_EQ(got.decision.map_side(), v1::MAP_SIDE_SOURCE);
  EXPECT_EQ(got.decision.covered_tokens(), kTokens - 1);
  EXPECT_EQ(got.decision.artifact_digest(), edge_.mapper().digest);
  EXPECT_EQ(got.decision.hops(), 1);
  EXPECT_TRUE(got.decision.approximate());
  EXPECT_FALSE(got.decision.salt().empty());
  EXPECT_GT(got.decision.max_abs(), 0);
  EXPECT_EQ(got.decision.bytes_in(), SourceBytes(kTokens - 1));
  EXPECT_EQ(got.decision.bytes_out(), TargetBytes(kTokens - 1));
  EXPECT_THAT(got.decision.dirty_pages(), IsEmpty());
  EXPECT_EQ(got.events.front().accepted().plane(), v1::PLANE_INLINE);
  EXPECT_EQ(got.events.front().accepted().covered_tokens(), kTokens - 1);
  EXPECT_EQ(got.events.front().accepted().tile_tokens(), 32);
  EXPECT_TRUE(Holds({0, kTokens - 1}));

  ASSERT_TRUE(edge_.Quiet() && peer_.Quiet());
  const std::string edge = edge_.server().Metrics();
  EXPECT_THAT(edge, HasSubstr(Bytes("in", "shm", SourceBytes(kTokens - 1))));
  EXPECT_THAT(edge, HasSubstr(Bytes("out", "inline", TargetBytes(kTokens - 1))));
  EXPECT_THAT(edge,
              HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"small-to-large\"} 1"));
  const std::string peer = peer_.server().Metrics();
  EXPECT_THAT(peer, HasSubstr(Bytes("in", "inline", TargetBytes(kTokens - 1))));
  EXPECT_THAT(peer, HasSubstr(Bytes("out", "shm", TargetBytes(kTokens - 1))));
}

TEST_F(MapSideTest, ChunksAreMappedBesideTheirCaller) {
  v1::TransferHeader header = Header();
  header.mutable_source_selection()->mutable_inline_();
  const CallResult got = edge_.Call(header, edge_.Chunks(cache_));
  ASSERT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
  EXPECT_EQ(got.decision.map_side(), v1::MAP_SIDE_SOURCE);
  EXPECT_EQ(got.decision.bytes_in(), SourceBytes(kTokens));
  EXPECT_EQ(got.decision.bytes_out(), TargetBytes(kTokens - 1));
  EXPECT_TRUE(Holds({0, kTokens - 1}));
}

TEST_F(MapSideTest, AChunkThatNeverCameIsNamed) {
  v1::TransferHeader header = Header();
  header.mutable_source_selection()->mutable_inline_();
  std::vector<v1::TransferChunk> chunks = edge_.Chunks(cache_);
  chunks.pop_back();
  const CallResult got = edge_.Call(header, chunks);
  EXPECT_EQ(got.completed, 1);
  EXPECT_EQ(got.decision.reason(), v1::REASON_SHAPE_MISMATCH) << got.decision.detail();
  EXPECT_THAT(got.decision.detail(), HasSubstr("missing"));
}

TEST_F(MapSideTest, WhatIsReadyTravelsBeforeTheRestIs) {
  HeldTransfer held(edge_, Header());
  held.Ready(48);
  EXPECT_TRUE(Eventually([&] { return Holds({0, 48}); }));
  held.Ready(kTokens);
  const v1::Decision decision = held.Decision();
  EXPECT_EQ(decision.outcome(), v1::OUTCOME_APPLIED) << decision.detail();
  EXPECT_TRUE(Holds({0, kTokens - 1}));
}

// The prefix was mapped at either end: one artifact, one cache.
TEST_F(MapSideTest, TheNextTurnIsAppended) {
  v1::TransferHeader first = Header();
  first.mutable_limits()->set_max_covered_tokens(70);
  ASSERT_EQ(edge_.Call(first, {}).decision.covered_tokens(), 70);
  v1::TransferHeader next = Header();
  next.set_first_token(70);
  next.set_artifact_digest(edge_.mapper().digest);
  const CallResult got = edge_.Call(next, {});
  ASSERT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
  EXPECT_EQ(got.decision.map_side(), v1::MAP_SIDE_SOURCE);
  EXPECT_EQ(got.decision.bytes_out(), TargetBytes(kTokens - 1 - 70));
  EXPECT_TRUE(Holds({0, kTokens - 1}));
}

TEST_F(MapSideTest, AnAnswerThatComesBackNeverLeaves) {
  v1::TransferHeader header = Header();
  header.mutable_target_selection()->mutable_inline_();
  const CallResult got = edge_.Call(header, {});
  ASSERT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
  EXPECT_EQ(got.decision.map_side(), v1::MAP_SIDE_SOURCE);
  EXPECT_EQ(got.events.front().accepted().plane(), v1::PLANE_UNSPECIFIED);
  DenseCache expected(edge_.mapper().target.geometry, kTokens);
  ASSERT_TRUE(edge_.MapInProcess(cache_, expected).applied());
  EXPECT_EQ(got.target->bytes, expected.bytes);
  EXPECT_THAT(peer_.server().Metrics(), HasSubstr(Bytes("in", "inline", 0)));
}

// Two of the peer's tiles are in its pages when one that would be in its third is found to be bad.
TEST_F(MapSideTest, WhatTheGuardsRefuseListsWhatThePeerHasWritten) {
  HeldTransfer held(edge_, Header());
  held.Ready(96);
  EXPECT_TRUE(Eventually([&] { return Holds({0, 96}); }));
  const std::vector<float> nan(cache_.geometry.head_dim, std::nanf(""));
  kv::WriteHead(source_->View(kTokens, source_pages_), 0, kv::Component::kValue, 120, 0,
                nan.data());
  held.Ready(kTokens);
  const v1::Decision decision = held.Decision();
  EXPECT_EQ(decision.reason(), v1::REASON_NON_FINITE) << decision.detail();
  EXPECT_EQ(decision.map_side(), v1::MAP_SIDE_SOURCE);
  EXPECT_EQ(decision.covered_tokens(), 0);
  const std::set<int32_t> written(target_pages_.begin(), target_pages_.begin() + 6);
  EXPECT_THAT(decision.dirty_pages(), ElementsAreArray(written));
}

TEST_F(MapSideTest, ABudgetEndsItOnBothSides) {
  v1::TransferHeader header = Header();
  header.mutable_limits()->mutable_max_latency()->set_seconds(1);
  HeldTransfer held(edge_, std::move(header));
  held.Ready(48);
  const v1::Decision decision = held.Decision();
  EXPECT_EQ(decision.reason(), v1::REASON_LATENCY_BUDGET) << decision.detail();
  EXPECT_EQ(decision.dirty_pages_size(), 3);
}

TEST_F(MapSideTest, ACallerWhoGoesAwayLeavesNothingOnEitherSide) {
  HeldTransfer held(edge_, Header());
  held.Ready(48);
  EXPECT_TRUE(Eventually([&] { return Holds({0, 48}); }));
  held.Cancel();
}

TEST_F(MapSideTest, APlaceThatThePeerDoesNotKnowIsNamed) {
  v1::TransferHeader header = Header();
  header.mutable_target_selection()->mutable_pool()->set_pool_id(std::string(32, '0'));
  const CallResult got = edge_.Call(header, {});
  EXPECT_EQ(got.completed, 1);
  EXPECT_EQ(got.events.size(), 1u) << "a refused transfer has only its end";
  EXPECT_EQ(got.decision.reason(), v1::REASON_INVALID_REQUEST);
  EXPECT_EQ(got.decision.detail(), "target_selection.pool: pool_id: not found");
  EXPECT_EQ(got.decision.map_side(), v1::MAP_SIDE_SOURCE);
  header = Header();
  header.mutable_target_selection()->mutable_pool()->mutable_pages()->RemoveLast();
  EXPECT_EQ(edge_.Call(header, {}).decision.reason(), v1::REASON_SHAPE_MISMATCH);
}

TEST_F(MapSideTest, WhatTheEdgeMayNotApplyIsThePeersAsBefore) {
  v1::TransferHeader other = Header();
  other.set_artifact_digest(std::string(64, '0'));
  EXPECT_EQ(edge_.Call(other, {}).decision.map_side(), v1::MAP_SIDE_TARGET);
  v1::SetRouteRequest request;
  v1::SetRouteResponse response;
  request.set_route(kRoute);
  request.set_stage(v1::ROUTE_STAGE_SHADOW);
  grpc::ClientContext context;
  ASSERT_TRUE(v1::Admin::NewStub(edge_.Connect())->SetRoute(&context, request, &response).ok());
  const CallResult got = edge_.Call(Header(), {});
  ASSERT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
  EXPECT_EQ(got.decision.map_side(), v1::MAP_SIDE_TARGET);
  EXPECT_TRUE(Holds({0, kTokens - 1}));
}

}  // namespace
}  // namespace kvbridge::server
