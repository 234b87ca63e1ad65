#include "core/kv/token_set.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace kvbridge::kv {
namespace {

TEST(TokenSetTest, EmptySetHoldsNothing) {
  const TokenSet set;
  EXPECT_EQ(set.CountIn({0, 10}), 0);
  EXPECT_EQ(set.FirstIn({3, 10}), 10);
  EXPECT_EQ(set.FirstNotIn({3, 10}), 3);
}

TEST(TokenSetTest, NeighboursMergeIntoOneRange) {
  TokenSet set;
  set.Insert({0, 2});
  set.Insert({4, 6});
  EXPECT_EQ(set.FirstNotIn({0, 6}), 2);
  EXPECT_EQ(set.FirstIn({2, 6}), 4);
  set.Insert({2, 4});
  EXPECT_EQ(set.CountIn({0, 6}), 6);
  EXPECT_EQ(set.FirstNotIn({0, 6}), 6);
  EXPECT_EQ(set.FirstNotIn({0, 9}), 6);
}

TEST(TokenSetTest, AgreesWithABitmapUnderRandomInsertions) {
  constexpr uint32_t kSeed = 7;
  RecordProperty("seed", kSeed);
  std::mt19937 random(kSeed);
  constexpr int64_t kTokens = 40;
  for (int round = 0; round < 200; ++round) {
    TokenSet set;
    std::vector<bool> bitmap(kTokens, false);
    for (int step = 0; step < 60; ++step) {
      const int64_t begin = random() % kTokens;
      const TokenRange range{begin, begin + 1 + int64_t(random() % (kTokens - begin))};
      int64_t count = 0;
      int64_t first_in = range.end;
      int64_t first_not_in = range.end;
      for (int64_t t = range.end - 1; t >= range.begin; --t) {
        count += bitmap[t];
        (bitmap[t] ? first_in : first_not_in) = t;
      }
      ASSERT_EQ(set.CountIn(range), count);
      ASSERT_EQ(set.FirstIn(range), first_in);
      ASSERT_EQ(set.FirstNotIn(range), first_not_in);
      const TokenRange fresh{range.begin, std::min(first_in, range.begin + 3)};
      if (fresh.size() <= 0) continue;
      set.Insert(fresh);
      for (int64_t t = fresh.begin; t < fresh.end; ++t) bitmap[t] = true;
    }
  }
}

}  // namespace
}  // namespace kvbridge::kv
