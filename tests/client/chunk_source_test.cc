#include "client/cpp/chunk_source.h"

#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "proto/kvbridge/v1/chunk_codec.h"
#include "tests/client/test_cache.h"

namespace kvbridge::client {
namespace {

std::shared_ptr<ChunkBuffers> Buffers() {
  return std::make_shared<ChunkBuffers>(kMaxChunkBytes, 2);
}

std::vector<wire::ReceivedChunk> Drain(ChunkSource* source) {
  std::vector<wire::ReceivedChunk> chunks;
  while (!source->done()) {
    auto parsed = wire::ParseRequest(source->Next());
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    chunks.push_back(std::get<wire::ReceivedChunk>(*std::move(parsed)));
    EXPECT_TRUE(wire::VerifyCrc(chunks.back()).ok());
    EXPECT_LE(chunks.back().bytes, kMaxChunkBytes);
  }
  return chunks;
}

// Every cell exactly once, with the bytes of its place; tile after tile.
void ExpectCovers(const std::vector<wire::ReceivedChunk>& chunks, const TestCache& cache,
                  const CacheShape& shape, int64_t tokens, int64_t tile_tokens) {
  std::set<std::tuple<int, int, int64_t>> cells;
  int64_t tile = 0;
  for (const auto& chunk : chunks) {
    std::vector<std::byte> bytes;
    for (const auto& piece : chunk.data) bytes.insert(bytes.end(), piece.begin(), piece.end());
    const auto& head = chunk.head;
    EXPECT_GE(head.token_begin() / tile_tokens, tile);
    tile = head.token_begin() / tile_tokens;
    EXPECT_EQ((head.token_end() - 1) / tile_tokens, tile);
    const int component = head.component() == v1::COMPONENT_KEY ? 0 : 1;
    const size_t head_bytes = shape.head_dim * ElementBytes(shape.element_type);
    const std::byte* at = bytes.data();
    for (int layer = head.layer_begin(); layer < head.layer_end(); ++layer) {
      for (int64_t token = head.token_begin(); token < head.token_end(); ++token) {
        EXPECT_TRUE(cells.emplace(layer, component, token).second);
        for (int h = 0; h < shape.kv_heads; ++h, at += head_bytes) {
          EXPECT_EQ(std::memcmp(at, cache.Head(layer, component, token, h), head_bytes), 0);
        }
      }
    }
    EXPECT_EQ(at, bytes.data() + bytes.size());
  }
  EXPECT_EQ(cells.size(), static_cast<size_t>(shape.layers * 2 * tokens));
}

TEST(ChunkSourceTest, SendsEveryCellOnceTileByTileInEveryLayout) {
  for (const Layout layout : {Layout::kHeadMajor, Layout::kTokenMajor}) {
    TestCache cache(kSmallShape, layout);
    cache.Fill();
    const SourceView view = cache.source();
    for (const int64_t tile : {1, 3, 4, 10, 4096}) {
      for (const int64_t tokens : {1, 9, 10}) {
        ChunkSource source(view, tokens, tile, Buffers());
        const auto chunks = Drain(&source);
        ExpectCovers(chunks, cache, kSmallShape, tokens, tile);
        EXPECT_EQ(source.bytes(), 3 * 2 * tokens * 32);
      }
    }
  }
}

TEST(ChunkSourceTest, ASmallTileIsOneChunkPerComponent) {
  TestCache cache(kSmallShape, Layout::kHeadMajor);
  const SourceView view = cache.source();
  ChunkSource source(view, 10, 256, Buffers());
  EXPECT_EQ(Drain(&source).size(), 2u);
}

// One layer of a tile is more than a chunk may hold: it is cut by tokens.
TEST(ChunkSourceTest, ALayerThatIsTooLargeIsCutByTokens) {
  const CacheShape shape = {.element_type = v1::ELEMENT_TYPE_F32,
                            .layers = 2,
                            .kv_heads = 64,
                            .head_dim = 4096,
                            .tokens = 9};
  TestCache cache(shape, Layout::kHeadMajor);
  cache.Fill();
  const SourceView view = cache.source();
  ChunkSource source(view, 9, 256, Buffers());
  const auto chunks = Drain(&source);
  EXPECT_EQ(chunks.size(), 2u * 2u * 3u);  // three tokens of 1 MiB fit into a chunk
  ExpectCovers(chunks, cache, shape, 9, 256);
}

TEST(ChunkSourceTest, DenseRowsWithAnOwnerAreSentInPlaceAndKeepItAlive) {
  const CacheShape shape = {.element_type = v1::ELEMENT_TYPE_BF16,
                            .layers = 2,
                            .kv_heads = 8,
                            .head_dim = 128,
                            .tokens = 256};
  TestCache cache(shape, Layout::kTokenMajor);
  cache.Fill();
  auto owner = std::make_shared<int>(0);
  SourceView view = cache.source();
  view.owner = owner;
  ChunkSource source(view, 256, 256, Buffers());
  {
    auto parsed = wire::ParseRequest(source.Next());
    ASSERT_TRUE(parsed.ok());
    const auto& chunk = std::get<wire::ReceivedChunk>(*parsed);
    ASSERT_EQ(chunk.data.size(), 1u);
    EXPECT_EQ(chunk.data[0].data(), cache.Head(0, 0, 0, 0));
    EXPECT_EQ(owner.use_count(), 3);  // here, in the view, with the chunk
  }
  EXPECT_EQ(owner.use_count(), 2);
  EXPECT_EQ(Drain(&source).size(), 3u);

  view.owner = nullptr;
  ChunkSource copying(view, 256, 256, Buffers());
  auto parsed = wire::ParseRequest(copying.Next());
  ASSERT_TRUE(parsed.ok());
  EXPECT_NE(std::get<wire::ReceivedChunk>(*parsed).data[0].data(), cache.Head(0, 0, 0, 0));
}

TEST(ChunkBuffersTest, ABufferIsUsedAgainAndIdleOnesAreBounded) {
  ChunkBuffers buffers(64, 1);
  auto first = buffers.Acquire();
  auto second = buffers.Acquire();
  std::byte* const address = first.get();
  buffers.Release(std::move(first));
  buffers.Release(std::move(second));  // one idle buffer is enough: this one is freed
  EXPECT_EQ(buffers.Acquire().get(), address);
}

}  // namespace
}  // namespace kvbridge::client
