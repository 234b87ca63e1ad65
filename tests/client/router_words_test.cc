#include "client/cpp/router_words.h"

#include <gtest/gtest.h>

namespace kvbridge::client {
namespace {

TEST(RouterWordsTest, OutcomesAndWordsMapBothWays) {
  EXPECT_EQ(ToRouterStatus(v1::OUTCOME_APPLIED), "applied");
  EXPECT_EQ(ToRouterStatus(v1::OUTCOME_FALLBACK_REPREFILL), "fallback_reprefill");
  EXPECT_EQ(ToRouterStatus(v1::OUTCOME_UNSUPPORTED), "unsupported");
  EXPECT_EQ(ToRouterStatus(v1::OUTCOME_UNSPECIFIED), "");
  for (const auto outcome :
       {v1::OUTCOME_APPLIED, v1::OUTCOME_FALLBACK_REPREFILL, v1::OUTCOME_UNSUPPORTED}) {
    EXPECT_EQ(ParseRouterStatus(ToRouterStatus(outcome)).value(), outcome);
  }
}

TEST(RouterWordsTest, OtherWordsAreRefused) {
  for (const char* word : {"", "Applied", "applied ", "error"}) {
    EXPECT_EQ(ParseRouterStatus(word).status().code(), absl::StatusCode::kInvalidArgument) << word;
  }
}

TEST(RouterWordsTest, HeaderNamesAreTheRouters) {
  EXPECT_EQ(kSourcePodHeader, "x-vsr-kv-source-pod");
  EXPECT_EQ(kCacheIdHeader, "x-vsr-kv-cache-id");
  EXPECT_EQ(kMapperIdHeader, "x-vsr-kv-mapper-id");
  EXPECT_EQ(kTransferStatusHeader, "x-vsr-kv-transfer-status");
}

}  // namespace
}  // namespace kvbridge::client
