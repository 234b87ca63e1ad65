#include "core/guard/route_policy.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::guard {
namespace {

TEST(RoutePolicyTest, DefaultsAndExtremesAreValid) {
  RoutePolicy policy;
  EXPECT_TRUE(Validate(policy).ok());
  policy.max_abs = std::numeric_limits<double>::infinity();
  policy.canary_share = policy.shadow_rate = 1;
  policy.max_latency = absl::Nanoseconds(1);
  policy.drill = {Reason::kOverload, 1};
  EXPECT_TRUE(Validate(policy).ok());
}

TEST(RoutePolicyTest, EachFieldOutOfRangeIsNamed) {
  struct Case {
    std::string field;
    std::function<void(RoutePolicy&)> spoil;
  };
  const double nan = std::nan("");
  const std::vector<Case> cases = {
      {"canary_share", [&](auto& p) { p.canary_share = nan; }},
      {"canary_share", [](auto& p) { p.canary_share = 1.01; }},
      {"max_latency", [](auto& p) { p.max_latency = absl::ZeroDuration(); }},
      {"max_abs", [](auto& p) { p.max_abs = 0; }},
      {"max_abs", [&](auto& p) { p.max_abs = nan; }},
      {"max_covered_tokens", [](auto& p) { p.max_covered_tokens = -1; }},
      {"min_covered_tokens", [](auto& p) { p.min_covered_tokens = 0; }},
      {"native_tail", [](auto& p) { p.native_tail = 0; }},
      {"max_hops", [](auto& p) { p.max_hops = 0; }},
      {"shadow_rate", [](auto& p) { p.shadow_rate = -0.1; }},
      {"shadow_rate", [&](auto& p) { p.shadow_rate = nan; }},
      {"drill.share",
       [&](auto& p) {
         p.drill = {Reason::kOverload, nan};
       }},
      {"drill.share",
       [](auto& p) {
         p.drill = {Reason::kOverload, 1.5};
       }},
      {"drill.reason", [](auto& p) { p.drill.share = 0.1; }},
  };
  for (const Case& c : cases) {
    RoutePolicy policy;
    c.spoil(policy);
    const absl::Status status = Validate(policy);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("policy." + c.field + ": "));
  }
}

}  // namespace
}  // namespace kvbridge::guard
