#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cpp/layer_progress.h"
#include "client/cpp/mapped_prefix.h"
#include "client/cpp/source_progress.h"

namespace kvbridge::client {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

v1::LayersReady Ready(int32_t layer_begin, int32_t layer_end, int64_t tokens) {
  v1::LayersReady ready;
  ready.set_layer_begin(layer_begin);
  ready.set_layer_end(layer_end);
  ready.set_token_end(tokens);
  return ready;
}

TEST(LayerProgressTest, TellsLayersInOrderOnceAllTheirTokensAreThere) {
  std::vector<std::pair<int32_t, int32_t>> told;
  LayerProgress progress(4, 10, [&](int32_t begin, int32_t end) { told.emplace_back(begin, end); });
  ASSERT_TRUE(progress.Add(Ready(0, 2, 6)).ok());
  ASSERT_TRUE(progress.Add(Ready(1, 4, 4)).ok());
  EXPECT_THAT(told, ElementsAre());
  ASSERT_TRUE(progress.Add(Ready(0, 1, 4)).ok());
  EXPECT_THAT(told, ElementsAre(Pair(0, 2)));
  ASSERT_TRUE(progress.Add(Ready(2, 4, 6)).ok());
  EXPECT_THAT(told, ElementsAre(Pair(0, 2), Pair(2, 4)));
  EXPECT_TRUE(absl::IsOutOfRange(progress.Add(Ready(3, 5, 1))));
}

TEST(SourceProgressTest, TellsOnlyWhatIsNew) {
  SourceProgress progress;
  const std::atomic<bool> over{false};
  progress.Ready(5);
  progress.Ready(3);
  EXPECT_EQ(progress.Beyond(0, absl::InfiniteFuture(), over), 5);
  std::thread later([&] { progress.Ready(8); });
  EXPECT_EQ(progress.Beyond(5, absl::InfiniteFuture(), over), 8);
  later.join();
  progress.Close();
  EXPECT_EQ(progress.Beyond(7, absl::InfiniteFuture(), over), 8);
  EXPECT_EQ(progress.Beyond(8, absl::InfiniteFuture(), over), std::nullopt);
}

TEST(SourceProgressTest, WhoeverWaitsGoesHomeWhenItIsOverOrTooLate) {
  SourceProgress progress;
  std::atomic<bool> over{false};
  EXPECT_EQ(progress.Beyond(0, absl::InfinitePast(), over), std::nullopt);
  std::thread ends([&] {
    over = true;
    progress.Wake();
  });
  EXPECT_EQ(progress.Beyond(0, absl::InfiniteFuture(), over), std::nullopt);
  ends.join();
}

TEST(MappedPrefixTest, HistoriesShareWhatTheyBeginWith) {
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(LongestCommonPrefix(Ids{1, 2, 3}, Ids{1, 2, 4, 5}), 2);
  EXPECT_EQ(LongestCommonPrefix(Ids{1, 2}, Ids{1, 2, 3}), 2);
  EXPECT_EQ(LongestCommonPrefix(Ids{}, Ids{1}), 0);
}

}  // namespace
}  // namespace kvbridge::client
