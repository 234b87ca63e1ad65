// The prototype's guard, case by case, on whole transfers.
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/core/engine/harness.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::engine {
namespace {

using guard::Reason;

// A transfer of six tokens, the most that the limits allow, whose elements are below 1.
struct Trial {
  static TransferEngine::Options Options() {
    auto options = Harness::DefaultOptions();
    options.limits.max_tokens = 6;
    return options;
  }

  Harness h{Options()};
  guard::TransferSpec spec = h.Spec(5);
  float scale = 1;
  float first = 0;  // not 0: the value of the first element

  Reason Run() {
    const auto source = RandomCache(h.source_.geometry, 6, 3);
    for (size_t i = 0; i < source->bytes.size(); i += sizeof(float)) {
      float v;
      std::memcpy(&v, source->bytes.data() + i, sizeof(v));
      v = i == 0 && first != 0 ? first : v * scale;
      std::memcpy(source->bytes.data() + i, &v, sizeof(v));
    }
    Cache target(h.target_.geometry, 6);
    return h.RunLocal(spec, *source, target).reason;
  }
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The harness's models do not rotate: a caller's that does is as far off as the prototype's caches
// without tables.
void Rotate(model::ModelSpec& spec) {
  spec.rope.params.rotary_dim = 8;
  spec.rope.params.inv_freq = {1, 0.1, 0.01, 0.001};
}

struct Case {
  Reason reason;  // kNone: applied
  std::function<void(Trial&)> arrange;
};

// How each of the prototype's cases is said here.
const std::map<std::string, Case> kCases = {
    {"accept", {Reason::kNone, [](Trial&) {}}},
    {"nan in source", {Reason::kNonFinite, [](Trial& t) { t.first = kNan; }}},
    {"inf in source", {Reason::kNonFinite, [](Trial& t) { t.first = kInf; }}},
    {"bound exceeded", {Reason::kMagnitudeBound, [](Trial& t) { t.h.policy_.max_abs = 0.01; }}},
    {"big but within default 1e4", {Reason::kNone, [](Trial& t) { t.scale = 100; }}},
    {"exceeds default 1e4", {Reason::kMagnitudeBound, [](Trial& t) { t.scale = 1e5; }}},
    {"max_abs_value inf",
     {Reason::kNone,
      [](Trial& t) {
        t.h.policy_.max_abs = kInf;
        t.scale = 1e5;
      }}},
    {"token bound equal", {Reason::kNone, [](Trial& t) { t.spec.tokens = 6; }}},
    {"token bound exceeded", {Reason::kTokenLimit, [](Trial& t) { t.spec.tokens = 7; }}},
    {"latency 1e-9 ms",
     {Reason::kLatencyBudget, [](Trial& t) { t.spec.max_latency = absl::Milliseconds(1e-9); }}},
    {"no rotary in source", {Reason::kIncompatibleModel, [](Trial& t) { Rotate(t.spec.source); }}},
    {"no target rotary", {Reason::kIncompatibleModel, [](Trial& t) { Rotate(t.spec.target); }}},
    {"target rotary of wrong length",
     {Reason::kInvalidRequest,
      [](Trial& t) {
        t.spec.position_list = {0, 1, 2, 3};
      }}},
    {"wrong layer count",
     {Reason::kShapeMismatch, [](Trial& t) { t.spec.source.geometry.layers = 3; }}},
    {"wrong head_dim",
     {Reason::kShapeMismatch, [](Trial& t) { t.spec.source.geometry.head_dim = 4; }}},
    {"zero tokens", {Reason::kInvalidRequest, [](Trial& t) { t.spec.tokens = 0; }}},
};

// Where this design differs, and why.
const std::set<std::string> kByDesign = {
    // A transfer is one sequence; batch_limit bounds its bytes instead (AdmissionTest).
    "batch bound equal", "batch bound exceeded",
    // The application's gate and quality probe run in the caller, which prefills when they reject
    // and says so with ReportQuality; no callback runs in the service.
    "accept callback false", "accept callback raises", "probe accepts", "probe rejects",
    "probe raises", "on_accept raises", "fallback raises after reject",
    // Refused when the route is configured (RoutePolicyTest), not request by request.
    "max_abs_value nan"};

TEST(GuardGoldenTest, AgreesWithThePrototypeCaseByCase) {
  const auto golden =
      nlohmann::json::parse(test::ReadTestFile("tests/data/golden/policy/guard.json"));
  size_t compared = 0;
  for (const auto& c : golden["cases"]) {
    const std::string name = c["name"];
    if (name == "constructor" || kByDesign.count(name) != 0) continue;
    const auto found = kCases.find(name);
    ASSERT_NE(found, kCases.end()) << name;
    EXPECT_EQ(found->second.reason == Reason::kNone, c["status"] == "accepted") << name;
    Trial trial;
    found->second.arrange(trial);
    EXPECT_EQ(Name(trial.Run()), Name(found->second.reason)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, kCases.size());
}

TEST(GuardGoldenTest, ConstructorErrorsAreConfigurationErrors) {
  guard::RoutePolicy policy;
  policy.max_abs = 0;
  EXPECT_EQ(guard::Validate(policy).code(), absl::StatusCode::kInvalidArgument);
  policy = {};
  policy.max_latency = absl::ZeroDuration();
  EXPECT_EQ(guard::Validate(policy).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Admission::Create({.max_request_bytes = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);  // its max_batch_size
  EXPECT_EQ(Admission::Create({.max_tokens = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvbridge::engine
