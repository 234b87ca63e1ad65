#include "core/fit/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvbridge::fit {
namespace {

using kv::Component;
using mapper::Support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::array<double, 2> kEven = {1, 1};

CurvePoint Point(Support support, size_t sources, int64_t parameters, double error) {
  CurvePoint point{.support = support, .parameters = parameters};
  point.sources.resize(sources);
  point.judged.error = error;
  return point;
}

// Full-head maps of 100 parameters a layer.
Curve FullCurve(Component c, std::vector<double> errors) {
  Curve curve{.component = c};
  for (size_t k = 1; k <= errors.size(); ++k) {
    curve.points.push_back(Point(Support::kFull, k, static_cast<int64_t>(100 * k), errors[k - 1]));
  }
  return curve;
}

const std::vector<Curve> kTwo = {FullCurve(Component::kKey, {0.5, 0.3, 0.25, 0.24}),
                                 FullCurve(Component::kValue, {0.9, 0.8, 0.72, 0.75})};

TEST(ChooseTest, FixedTakesThatManyOrTheMostThereAre) {
  EXPECT_THAT(ChooseFixed(kTwo, Support::kFull, 2), ElementsAre(1, 1));
  EXPECT_THAT(ChooseFixed(kTwo, Support::kFull, 9), ElementsAre(3, 3));
}

TEST(ChooseTest, SweepTakesTheNumberThatIsBestOnAverage) {
  EXPECT_THAT(ChooseSweep(kTwo, kEven), ElementsAre(2, 2));    // 0.97 against 0.99
  EXPECT_THAT(ChooseSweep(kTwo, {10, 1}), ElementsAre(3, 3));  // keys decide
}

TEST(ChooseTest, SweepIgnoresNumbersThatNotEveryCurveHas) {
  const std::vector<Curve> curves = {FullCurve(Component::kKey, {0.5, 0.3, 0.1}),
                                     FullCurve(Component::kKey, {0.5, 0.4})};
  EXPECT_THAT(ChooseSweep(curves, kEven), ElementsAre(1, 1));
}

TEST(ChooseTest, BestIsEachCurvesOwnAndTiesAreCheap) {
  EXPECT_THAT(ChooseBest(kTwo), ElementsAre(3, 2));
  EXPECT_THAT(ChooseBest(std::vector<Curve>{FullCurve(Component::kKey, {0.5, 0.4, 0.4})}),
              ElementsAre(1));
}

TEST(ChooseTest, BudgetGoesWhereAnErrorFallsMost) {
  // Gains per 100: keys 0.2, 0.05, 0.01; values 0.1, 0.08.
  EXPECT_THAT(*ChooseWithinBudget(kTwo, kEven, 200), ElementsAre(0, 0));
  EXPECT_THAT(*ChooseWithinBudget(kTwo, kEven, 300), ElementsAre(1, 0));
  EXPECT_THAT(*ChooseWithinBudget(kTwo, kEven, 400), ElementsAre(1, 1));
  EXPECT_THAT(*ChooseWithinBudget(kTwo, kEven, 599), ElementsAre(1, 2));
  EXPECT_THAT(*ChooseWithinBudget(kTwo, kEven, 600), ElementsAre(2, 2));
  // The whole of it buys each curve's best, not its last.
  EXPECT_THAT(*ChooseWithinBudget(kTwo, kEven, 100000), ElementsAre(3, 2));
}

TEST(ChooseTest, BudgetLooksPastAStepThatHelpsLittleToOneThatHelpsMuch) {
  const std::vector<Curve> curves = {FullCurve(Component::kKey, {0.9, 0.89, 0.1}),
                                     FullCurve(Component::kValue, {0.9, 0.7, 0.6})};
  EXPECT_THAT(*ChooseWithinBudget(curves, kEven, 400), ElementsAre(2, 0));
}

TEST(ChooseTest, BudgetPassesOverASegmentThatDoesNotFit) {
  const std::vector<Curve> curves = {FullCurve(Component::kKey, {0.9, 0.89, 0.1}),
                                     FullCurve(Component::kValue, {0.9, 0.7, 0.6})};
  EXPECT_THAT(*ChooseWithinBudget(curves, kEven, 300), ElementsAre(0, 1));
}

TEST(ChooseTest, BudgetMixesSupports) {
  Curve curve{.component = Component::kKey};
  curve.points = {Point(Support::kFull, 1, 400, 0.5), Point(Support::kFull, 2, 800, 0.2),
                  Point(Support::kHeadLocal, 1, 100, 0.6), Point(Support::kHeadLocal, 4, 400, 0.4)};
  const std::vector<Curve> one = {curve};
  EXPECT_THAT(*ChooseWithinBudget(one, kEven, 399), ElementsAre(2));
  EXPECT_THAT(*ChooseWithinBudget(one, kEven, 400), ElementsAre(3));
  EXPECT_THAT(*ChooseWithinBudget(one, kEven, 800), ElementsAre(1));
}

TEST(ChooseTest, TooSmallABudgetSaysWhatIsNeeded) {
  const absl::Status status = ChooseWithinBudget(kTwo, kEven, 199).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at least 200 parameters"));
}

TEST(ChooseTest, ComponentWeightsMoveTheBudget) {
  EXPECT_THAT(*ChooseWithinBudget(kTwo, {1, 10}, 400), ElementsAre(0, 2));
}

}  // namespace
}  // namespace kvbridge::fit
