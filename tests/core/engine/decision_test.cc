#include "core/engine/decision.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace kvbridge::engine {
namespace {

TEST(DecisionTest, StageNamesAreTheWires) {
  std::string names;
  for (size_t s = 0; s < kStageCount; ++s) {
    names += std::string(Name(static_cast<Stage>(s))) + " ";
  }
  EXPECT_EQ(names, "queue ingress strip_rope map guard egress ");
}

TEST(DecisionTest, RefusedCarriesTheReasonAndWhatTheRequestIsKnownBy) {
  guard::TransferSpec spec;
  spec.route = "r";
  spec.token_ids_sha256 = "ids";
  const Decision decision =
      Refused({guard::Outcome::kUnsupported, guard::Reason::kIncompatibleModel, "why"}, spec);
  EXPECT_FALSE(decision.applied());
  EXPECT_EQ(decision.outcome, guard::Outcome::kUnsupported);
  EXPECT_EQ(decision.reason, guard::Reason::kIncompatibleModel);
  EXPECT_EQ(decision.detail, "why");
  EXPECT_EQ(decision.route, "r");
  EXPECT_EQ(decision.token_ids_sha256, "ids");
  EXPECT_EQ(decision.covered_tokens, 0);
  EXPECT_FALSE(decision.approximate);
  EXPECT_EQ(decision.salt, "");
}

TEST(DecisionTest, SaltIsADocumentedFunctionOfDigestRouteAndHops) {
  const std::string digest(64, 'd');
  EXPECT_EQ(CacheSalt(digest, "kvbridge-shadow-v1", 1).value(),
            "kvb1-2c98c324072d5defd3406ab8a4e3ad81");
  const std::set<std::string> different = {
      CacheSalt(digest, "a", 1).value(), CacheSalt(std::string(64, 'e'), "a", 1).value(),
      CacheSalt(digest, "b", 1).value(), CacheSalt(digest, "a", 2).value()};
  EXPECT_EQ(different.size(), 4u);
}

}  // namespace
}  // namespace kvbridge::engine
