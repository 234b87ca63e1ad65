#include "core/kv/positions.h"

#include <limits>

#include "tests/core/kv/status_matcher.h"

namespace kvbridge::kv {
namespace {

using absl::StatusCode::kInvalidArgument;
using testing::ElementsAre;

TEST(PositionsTest, RangeCountsUpFromItsStart) {
  const auto positions = Positions::CreateRange(1000, 4, 0);
  ASSERT_TRUE(positions.ok());
  EXPECT_EQ(positions->size(), 4);
  EXPECT_EQ(positions->pads(), 0);
  EXPECT_THAT(positions->span({0, 4}), ElementsAre(1000, 1001, 1002, 1003));
  EXPECT_THAT(positions->span({1, 3}), ElementsAre(1001, 1002));
  EXPECT_THAT(positions->span({2, 2}), ElementsAre());
}

// B13: a compressed cache keeps its tokens' original positions.
TEST(PositionsTest, GapsAreKept) {
  const auto positions = Positions::Create({0, 1, 5, 9}, 10);
  ASSERT_TRUE(positions.ok());
  EXPECT_THAT(positions->span({0, 4}), ElementsAre(0, 1, 5, 9));
}

// B12: the shorter row of a left-padded batch.
TEST(PositionsTest, LeftPaddingIsCountedAndKeptInPlace) {
  const auto positions = Positions::Create({-1, -1, 0, 1, 2}, 0);
  ASSERT_TRUE(positions.ok());
  EXPECT_EQ(positions->size(), 5);
  EXPECT_EQ(positions->pads(), 2);
  EXPECT_THAT(positions->span({2, 5}), ElementsAre(0, 1, 2));
}

TEST(PositionsTest, PaddingAnywhereButFirstIsRefused) {
  EXPECT_THAT(Positions::Create({-1, 0, -1, 1}, 0),
              IsError(kInvalidArgument, "positions[2]: expected > 0, got -1"));
  EXPECT_THAT(Positions::Create({0, 1, -1}, 0), IsError(kInvalidArgument, "positions[2]"));
}

TEST(PositionsTest, NothingButPaddingIsRefused) {
  EXPECT_THAT(Positions::Create({}, 0), IsError(kInvalidArgument, "got 0 of padding"));
  EXPECT_THAT(Positions::Create({-1, -1}, 0), IsError(kInvalidArgument, "got 2 of padding"));
}

TEST(PositionsTest, PositionsThatDoNotIncreaseAreNamedByIndex) {
  EXPECT_THAT(Positions::Create({0, 1, 1}, 0),
              IsError(kInvalidArgument, "positions[2]: expected > 1, got 1"));
  EXPECT_THAT(Positions::Create({-1, 7, 9, 8, 10}, 0),
              IsError(kInvalidArgument, "positions[3]: expected > 9, got 8"));
}

TEST(PositionsTest, NegativePositionsAreRefused) {
  EXPECT_THAT(Positions::Create({-2, 0}, 0),
              IsError(kInvalidArgument, "positions[0]: expected > -1, got -2"));
  EXPECT_THAT(Positions::CreateRange(-1, 3, 0),
              IsError(kInvalidArgument, "positions.start: expected 0 or more, got -1"));
}

TEST(PositionsTest, TheLastPositionMustBeBelowTheLimit) {
  EXPECT_TRUE(Positions::Create({0, 4095}, 4096).ok());
  EXPECT_THAT(Positions::Create({0, 4096}, 4096),
              IsError(kInvalidArgument, "expected below max_position 4096, got 4096"));
  EXPECT_TRUE(Positions::CreateRange(4000, 96, 4096).ok());
  EXPECT_THAT(Positions::CreateRange(4000, 97, 4096),
              IsError(kInvalidArgument, "expected below max_position 4096, got 4096"));
}

TEST(PositionsTest, CountsThatAreEmptyOrOverflowAreRefused) {
  EXPECT_THAT(Positions::CreateRange(0, 0, 0), IsError(kInvalidArgument, "positions.count"));
  EXPECT_THAT(Positions::CreateRange(5, -1, 0), IsError(kInvalidArgument, "positions.count"));
  EXPECT_THAT(Positions::CreateRange(5, std::numeric_limits<int64_t>::max() - 4, 0),
              IsError(kInvalidArgument, "positions.count"));
}

}  // namespace
}  // namespace kvbridge::kv
