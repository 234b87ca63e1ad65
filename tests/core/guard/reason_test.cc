#include "core/guard/reason.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace kvbridge::guard {
namespace {

TEST(ReasonTest, NamesAreTheWiresWordsAndDiffer) {
  std::set<std::string> names;
  for (int r = 0; r <= static_cast<int>(Reason::kCircuitOpen); ++r) {
    names.insert(std::string(Name(static_cast<Reason>(r))));
  }
  EXPECT_EQ(names.size(), 26u);
  EXPECT_EQ(Name(Reason::kInvalidRequest), "invalid_request");
  EXPECT_EQ(Name(Reason::kDraining), "draining");
  EXPECT_EQ(Name(Reason::kInternal), "internal");
  EXPECT_EQ(Name(Reason::kCircuitOpen), "circuit_open");
  EXPECT_EQ(Name(Outcome::kApplied), "applied");
  EXPECT_EQ(Name(Outcome::kFallbackReprefill), "fallback_reprefill");
  EXPECT_EQ(Name(Outcome::kUnsupported), "unsupported");
}

TEST(ReasonTest, ClassesSayWhoCanDoSomethingAboutIt) {
  const auto class_of = [](Reason reason) { return std::string(Name(ClassOf(reason))); };
  for (Reason r : {Reason::kInvalidRequest, Reason::kIncompatibleModel, Reason::kShapeMismatch}) {
    EXPECT_EQ(class_of(r), "client") << Name(r);
  }
  for (Reason r : {Reason::kBatchLimit, Reason::kTokenLimit, Reason::kAppGate,
                   Reason::kRouteDisabled, Reason::kNotWorthIt}) {
    EXPECT_EQ(class_of(r), "policy") << Name(r);
  }
  for (Reason r : {Reason::kQualityProbe, Reason::kNonFinite, Reason::kMagnitudeBound,
                   Reason::kUnprovenPair}) {
    EXPECT_EQ(class_of(r), "quality") << Name(r);
  }
  for (Reason r : {Reason::kLatencyBudget, Reason::kDeadlineExceeded, Reason::kOverload,
                   Reason::kDeviceOom, Reason::kDraining}) {
    EXPECT_EQ(class_of(r), "capacity") << Name(r);
  }
  for (Reason r : {Reason::kArtifactUnavailable, Reason::kArtifactIntegrity, Reason::kTransport,
                   Reason::kDeviceError}) {
    EXPECT_EQ(class_of(r), "infra") << Name(r);
  }
  EXPECT_EQ(class_of(Reason::kInternal), "internal");
}

}  // namespace
}  // namespace kvbridge::guard
