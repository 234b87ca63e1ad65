#include "client/cpp/pool.h"

#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/staging.h"
#include "tests/client/test_cache.h"

namespace kvbridge::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::ModelSpec SmallModel() {
  v1::ModelSpec model;
  v1::KvGeometry& geometry = *model.mutable_geometry();
  geometry.set_layers(kSmallShape.layers);
  geometry.set_kv_heads(kSmallShape.kv_heads);
  geometry.set_head_dim(kSmallShape.head_dim);
  geometry.set_element_type(kSmallShape.element_type);
  return model;
}

// [pages, tokens, heads, dim] per plane, as NHD engines have it.
PoolLayout TokensFirst(std::byte* memory, int32_t pages, int32_t tokens_per_page) {
  PoolLayout layout;
  layout.model = SmallModel();
  layout.tokens_per_page = tokens_per_page;
  layout.pages = pages;
  layout.head_stride = 16;
  layout.token_stride = 32;
  layout.page_stride = 32 * tokens_per_page;
  for (int plane = 0; plane < 6; ++plane) {
    layout.planes.push_back(memory + plane * pages * layout.page_stride);
  }
  return layout;
}

class PoolTest : public ::testing::Test {
 protected:
  std::shared_ptr<const SharedRegion> region_ = SharedRegion::Create(1 << 16).value();
};

TEST_F(PoolTest, APageTableFindsEveryTokenAndRunsEndWithTheirPages) {
  const auto pool = Pool::Create(TokensFirst(region_->bytes().data(), 5, 4), {region_}).value();
  const SourceView view = pool->Source(std::vector<int32_t>{3, 0, 4}, 10).value();
  EXPECT_EQ(view.pool, pool);
  EXPECT_EQ(view.Row(0, 0).first, region_->bytes().data() + 3 * 128);
  EXPECT_EQ(view.Row(0, 5).first, region_->bytes().data() + 32);
  EXPECT_EQ(view.Row(0, 9).second, 3);
  std::vector<size_t> runs;
  ForEachRun(view,
             {.layer_begin = 1,
              .layer_end = 2,
              .component = v1::COMPONENT_VALUE,
              .token_begin = 2,
              .token_end = 9},
             [&](const std::byte*, size_t bytes) { runs.push_back(bytes); });
  EXPECT_THAT(runs, ElementsAre(2 * 32, 4 * 32, 32));
}

TEST_F(PoolTest, CopiesBetweenPagesAndRowsKeepEveryByte) {
  TestCache source(kSmallShape, Layout::kHeadMajor);
  TestCache back(kSmallShape, Layout::kTokenMajor);
  source.Fill();
  const auto pool = Pool::Create(TokensFirst(region_->bytes().data(), 5, 4), {region_}).value();
  const std::vector<int32_t> pages = {3, 0, 4};
  CopyTokens(source.source(), pool->Target(pages, 10).value(), 0, 10);
  CopyTokens(pool->Source(pages, 10).value(), back.target(), 2, 10);
  EXPECT_TRUE(back.Holds(2, 10));
  EXPECT_TRUE(back.IsAll(TestCache::kUntouched, 0, 2));
}

TEST_F(PoolTest, ItsRequestStatesOffsetsInItsRegions) {
  const auto pool =
      Pool::Create(TokensFirst(region_->bytes().data() + 512, 5, 4), {region_}).value();
  const v1::RegisterPoolRequest request = pool->Request("s", {"r"});
  EXPECT_EQ(request.keys_size(), 3);
  EXPECT_EQ(request.keys(0).base_offset(), 512u);
  EXPECT_EQ(request.values(2).base_offset(), 512u + 5 * 5 * 128);
  EXPECT_EQ(request.values(2).region_id(), "r");
  EXPECT_EQ(request.keys(1).page_stride(), 128);
}

TEST_F(PoolTest, APlaneThatLeavesItsRegionIsRefused) {
  const size_t end = region_->bytes().size();
  EXPECT_TRUE(
      Pool::Create(TokensFirst(region_->bytes().data() + end - 6 * 5 * 128, 5, 4), {region_}).ok());
  const auto beyond =
      Pool::Create(TokensFirst(region_->bytes().data() + end - 6 * 5 * 128 + 1, 5, 4), {region_});
  EXPECT_THAT(beyond.status().message(), HasSubstr("layout.planes[5]: expected 640 bytes"));
  TestCache elsewhere(kSmallShape, Layout::kTokenMajor);
  const auto outside = Pool::Create(
      TokensFirst(const_cast<std::byte*>(elsewhere.Head(0, 0, 0, 0)), 1, 1), {region_});
  EXPECT_THAT(outside.status().message(), HasSubstr("layout.planes[0]"));
}

TEST_F(PoolTest, StridesThatCannotBeAreRefused) {
  for (const int64_t stride : {int64_t{-1}, int64_t{1} << 62}) {
    PoolLayout layout = TokensFirst(region_->bytes().data(), 5, 4);
    layout.page_stride = stride;
    EXPECT_THAT(Pool::Create(layout, {region_}).status().message(), HasSubstr("page_stride"));
  }
}

TEST_F(PoolTest, PagesThatAreNotOfThePoolAreRefused) {
  const auto pool = Pool::Create(TokensFirst(region_->bytes().data(), 5, 4), {region_}).value();
  EXPECT_THAT(pool->Source(std::vector<int32_t>{0, 5}, 8).status().message(),
              HasSubstr("pages[1]: expected 0 to 4, got 5"));
  EXPECT_THAT(pool->Source(std::vector<int32_t>{0, 1, 2}, 8).status().message(),
              HasSubstr("cache.pages: expected those of 8 tokens"));
  EXPECT_FALSE(pool->Source({}, 8).ok());
}

class StagingTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<const Pool>> Take(int64_t tokens) {
    return staging_.Take(SmallModel(), {}, tokens, &dropped_);
  }
  // 256 tokens take 48 KiB, 512 twice as much.
  Staging staging_{100 << 10};
  std::vector<std::shared_ptr<const Pool>> dropped_;
};

TEST_F(StagingTest, APoolIsUsedAgainUnlessTheServerMayStillWriteToIt) {
  const auto first = Take(100).value();
  staging_.Return(first, true);
  EXPECT_EQ(Take(256).value(), first);
  staging_.Return(first, false);
  EXPECT_NE(Take(100).value(), first);
}

TEST_F(StagingTest, WhatIsIdleGoesBeforeTheBoundIsReached) {
  const auto first = Take(1).value();
  staging_.Return(first, true);
  EXPECT_TRUE(Take(512).ok());
  EXPECT_THAT(dropped_, ElementsAre(first));
  EXPECT_TRUE(absl::IsResourceExhausted(Take(1).status()));
}

TEST_F(StagingTest, AfterARefusalOnlyWhatIsThereServes) {
  const auto first = Take(100).value();
  staging_.Return(first, true);
  staging_.Refuse(absl::ResourceExhaustedError("the server has none"));
  EXPECT_EQ(Take(512).status().message(), "the server has none");
  EXPECT_EQ(Take(100).value(), first);
}

TEST(SharedRegionTest, IsWholePagesThatReadZero) {
  const auto region = SharedRegion::Create(5000).value();
  EXPECT_EQ(region->bytes().size() % 4096, 0u);
  EXPECT_GE(region->bytes().size(), 5000u);
  EXPECT_EQ(region->bytes().back(), std::byte{0});
  EXPECT_TRUE(absl::IsInvalidArgument(SharedRegion::Create(0).status()));
}

}  // namespace
}  // namespace kvbridge::client
