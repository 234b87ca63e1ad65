#include "server/route_watch.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config.h"

namespace kvbridge::server {
namespace {

using guard::Reason;
using guard::TryResult;
using ::testing::ElementsAre;

engine::Decision Ended(Reason reason, int64_t bytes_in = 0) {
  engine::Decision decision;
  decision.outcome =
      reason == Reason::kNone ? guard::Outcome::kApplied : guard::Outcome::kFallbackReprefill;
  decision.reason = reason;
  decision.bytes_in = bytes_in;
  return decision;
}

TEST(RouteWatchTest, ARouteIsToBlameForWhatItDidWrong) {
  EXPECT_EQ(ResultOf(Ended(Reason::kNone)), TryResult::kGood);
  for (const Reason reason : {Reason::kNonFinite, Reason::kMagnitudeBound, Reason::kQualityProbe,
                              Reason::kDeviceError, Reason::kDeviceOom, Reason::kInternal}) {
    EXPECT_EQ(ResultOf(Ended(reason)), TryResult::kBad) << Name(reason);
  }
  for (const Reason reason :
       {Reason::kInvalidRequest, Reason::kShapeMismatch, Reason::kOverload, Reason::kTransport,
        Reason::kRouteDisabled, Reason::kDeadlineExceeded, Reason::kCancelled}) {
    EXPECT_EQ(ResultOf(Ended(reason)), TryResult::kNeutral) << Name(reason);
  }
}

TEST(RouteWatchTest, ADrillSaysNothingAboutARoute) {
  engine::Decision rehearsed = Ended(Reason::kDeviceError);
  rehearsed.drill = true;
  EXPECT_EQ(ResultOf(rehearsed), TryResult::kNeutral);
}

TEST(RouteWatchTest, BeingLateCountsOnlyWhenItWasTried) {
  EXPECT_EQ(ResultOf(Ended(Reason::kLatencyBudget)), TryResult::kNeutral);
  EXPECT_EQ(ResultOf(Ended(Reason::kLatencyBudget, 1)), TryResult::kBad);
}

class Watched : public ::testing::Test {
 protected:
  Watched()
      : config_(LoadConfig({.file_text = "routes: [{name: pair, artifact: x, circuit: "
                                         "{min_transfers: 1, probes: 1, open_for: 1h}}]"})
                    .value()
                    .config.routes(0)),
        watch_(std::make_shared<RouteWatch>(
            "pair", config_,
            RouteWatch::Deps{&metrics_, &clock_,
                             [this](const RouteChange& change) { changes_.push_back(change); }})) {}

  std::vector<std::string> Circuits() const {
    std::vector<std::string> words;
    for (const RouteChange& change : changes_) words.push_back(change.cause + ": " + change.to);
    return words;
  }

  const v1::RouteConfig config_;
  prometheus::Registry registry_;
  metrics::OperationMetrics metrics_{&registry_};
  base::SystemClock clock_;
  std::vector<RouteChange> changes_;
  std::shared_ptr<RouteWatch> watch_;
};

TEST_F(Watched, ATryThatEndsWithoutADecisionSaysNothing) {
  ASSERT_TRUE(watch_->Admit());
  { const RouteTry attempt(watch_); }
  EXPECT_EQ(watch_->circuit(), guard::CircuitState::kClosed);
}

TEST_F(Watched, OnlyTheFirstEndOfATryCounts) {
  RouteTry attempt(watch_);
  attempt.Ended(TryResult::kGood);
  attempt.Ended(TryResult::kBad);
  EXPECT_EQ(watch_->circuit(), guard::CircuitState::kClosed);
}

TEST_F(Watched, EachChangeOfTheCircuitIsToldOnceWithItsCause) {
  RouteTry(watch_).Ended(TryResult::kBad);
  EXPECT_FALSE(watch_->Admit());
  EXPECT_FALSE(watch_->Admit());
  watch_->Override(guard::CircuitOverride::kAuto);
  EXPECT_THAT(Circuits(), ElementsAre("circuit: open", "operator: closed"));
  EXPECT_EQ(changes_[0].detail, "too large a share of its transfers failed");
}

TEST_F(Watched, BoundsAreTheEvidencesTimesTheMargin) {
  artifact::Provenance provenance;
  provenance.evidence = artifact::Evidence{.verdict = artifact::Verdict::kPass, .kl_nats = 0.02};
  provenance.evidence->details = base::Json::parse(
      R"({"all": {"variants": {"mapped": {"top1": {"value": 0.9}}, "mapped.tail8": {}}}})");
  watch_->Judge(provenance, 1);
  // Both are watched: disagreement far above 1.5 * 0.1 raises the alarm by itself.
  int reports = 0;
  while (!watch_->Report(0.02, 0.9)) ASSERT_LT(++reports, 50);
  // At another tail the disagreement was not measured.
  watch_->Judge(provenance, 8);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(watch_->Report(0.02, 0.9));
}

}  // namespace
}  // namespace kvbridge::server
