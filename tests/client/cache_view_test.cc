#include "client/cpp/cache_view.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/test_cache.h"

namespace kvbridge::client {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Collect(const SourceView& view, const Piece& piece, int* runs) {
  std::vector<std::byte> bytes;
  ForEachRun(view, piece, [&](const std::byte* run, size_t size) {
    bytes.insert(bytes.end(), run, run + size);
    ++*runs;
  });
  return bytes;
}

constexpr Piece kPiece = {.layer_begin = 1,
                          .layer_end = 3,
                          .component = v1::COMPONENT_VALUE,
                          .token_begin = 2,
                          .token_end = 7};

TEST(CacheViewTest, RunsFollowTheChunksOrderInEveryLayout) {
  std::vector<std::byte> expected;
  for (int layer = 1; layer < 3; ++layer) {
    for (int64_t token = 2; token < 7; ++token) {
      for (int head = 0; head < 2; ++head) {
        for (size_t i = 0; i < 16; ++i) {
          expected.push_back(TestCache::Expected(layer, 1, token, head, i));
        }
      }
    }
  }
  for (const auto& [layout, runs] :
       {std::pair{Layout::kHeadMajor, 2 * 5 * 2}, std::pair{Layout::kTokenMajor, 2}}) {
    TestCache cache(kSmallShape, layout);
    cache.Fill();
    int seen = 0;
    EXPECT_EQ(Collect(cache.source(), kPiece, &seen), expected);
    EXPECT_EQ(seen, runs);
  }
}

TEST(CacheViewTest, PaddedRowsAreRunsOfTheirOwn) {
  TestCache cache(kSmallShape, Layout::kTokenMajor);
  SourceView view = cache.source();
  view.token_stride *= 2;
  int runs = 0;
  Piece piece = kPiece;
  piece.token_end = 4;
  EXPECT_EQ(Collect(view, piece, &runs).size(), 2 * 2 * 2 * 16u);
  EXPECT_EQ(runs, 2 * 2);
}

TEST(CacheViewTest, ValidationNamesTheField) {
  TestCache cache(kSmallShape, Layout::kTokenMajor);
  EXPECT_TRUE(Validate(cache.source(), "source").ok());
  const auto expect = [&](const SourceView& view, const char* field) {
    const absl::Status status = Validate(view, "source");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  SourceView view = cache.source();
  view.shape.element_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  expect(view, "source.shape.element_type");
  view = cache.source();
  view.shape.layers = 0;
  expect(view, "source.shape.layers");
  view = cache.source();
  view.shape.head_dim = 5000;
  expect(view, "source.shape.head_dim: expected 1 to 4096, got 5000");
  view = cache.source();
  view.shape.tokens = 0;
  expect(view, "source.shape.tokens");
  view = cache.source();
  view.planes.pop_back();
  expect(view, "source.planes: expected 6 addresses, got 5");
  view = cache.source();
  view.planes[4] = nullptr;
  expect(view, "source.planes[4]");
  view = cache.source();
  view.head_stride = 8;
  expect(view, "source.head_stride: expected at least 16 bytes, got 8");
  view = cache.source();
  view.token_stride = 0;
  expect(view, "source.token_stride");
}

}  // namespace
}  // namespace kvbridge::client
