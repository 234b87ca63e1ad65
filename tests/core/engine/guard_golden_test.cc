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

// A transfer of five tokens whose elements are below 1, times `scale`.
struct Trial {
  Trial() {
    h.policy_.native_tail = 1;
    spec = h.Spec(5);
  }
  Harness h;
  guard::TransferSpec spec;
  float scale = 1;
  float first = 0;  // not 0: the value of one element

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

void RotateSource(model::ModelSpec& spec) {
  spec.rope.params.rotary_dim = 8;
  spec.rope.params.inv_freq = {1, 0.1, 0.01, 0.001};
}

// How each of the prototype's cases is said here.
const std::map<std::string, std::function<Reason(Trial&)>>& Cases() {
  static const auto* const kCases = new std::map<std::string, std::function<Reason(Trial&)>>{
      {"accept", [](Trial& t) { return t.Run(); }},
      {"nan in source",
       [](Trial& t) {
         t.first = std::numeric_limits<float>::quiet_NaN();
         return t.Run();
       }},
      {"inf in source",
       [](Trial& t) {
         t.first = std::numeric_limits<float>::infinity();
         return t.Run();
       }},
      {"bound exceeded",
       [](Trial& t) {
         t.h.policy_.max_abs = 0.01;
         return t.Run();
       }},
      {"big but within default 1e4",
       [](Trial& t) {
         t.scale = 100;
         return t.Run();
       }},
      {"exceeds default 1e4",
       [](Trial& t) {
         t.scale = 1e5;
         return t.Run();
       }},
      {"max_abs_value inf",
       [](Trial& t) {
         t.h.policy_.max_abs = std::numeric_limits<double>::infinity();
         t.scale = 1e5;
         return t.Run();
       }},
      {"token bound equal",
       [](Trial& t) {
         t.spec.tokens = 131072;
         return t.h.Begin(t.spec) == nullptr ? Reason::kInternal : Reason::kNone;
       }},
      {"token bound exceeded",
       [](Trial& t) {
         t.spec.tokens = 131073;
         return t.Run();
       }},
      {"latency 1e-9 ms",
       [](Trial& t) {
         t.spec.max_latency = absl::Milliseconds(1e-9);
         return t.Run();
       }},
      {"no rotary in source",
       [](Trial& t) {
         RotateSource(t.spec.source);
         return t.Run();
       }},
      {"no target rotary",
       [](Trial& t) {
         RotateSource(t.spec.target);
         return t.Run();
       }},
      {"target rotary of wrong length",
       [](Trial& t) {
         t.spec.position_list = {0, 1, 2, 3};
         return t.Run();
       }},
      {"wrong layer count",
       [](Trial& t) {
         t.spec.source.geometry.layers = 3;
         return t.Run();
       }},
      {"wrong head_dim",
       [](Trial& t) {
         t.spec.source.geometry.head_dim = 4;
         return t.Run();
       }},
      {"zero tokens",
       [](Trial& t) {
         t.spec.tokens = 0;
         return t.Run();
       }},
  };
  return *kCases;
}

const std::map<std::string, Reason> kReasons = {
    {"nan in source", Reason::kNonFinite},
    {"inf in source", Reason::kNonFinite},
    {"bound exceeded", Reason::kMagnitudeBound},
    {"exceeds default 1e4", Reason::kMagnitudeBound},
    {"token bound exceeded", Reason::kTokenLimit},
    {"latency 1e-9 ms", Reason::kLatencyBudget},
    {"no rotary in source", Reason::kIncompatibleModel},
    {"no target rotary", Reason::kIncompatibleModel},
    {"target rotary of wrong length", Reason::kInvalidRequest},
    {"wrong layer count", Reason::kShapeMismatch},
    {"wrong head_dim", Reason::kShapeMismatch},
    {"zero tokens", Reason::kInvalidRequest},
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
    ASSERT_EQ(Cases().count(name), 1u) << name;
    Trial trial;
    const Reason reason = Cases().at(name)(trial);
    EXPECT_EQ(reason == Reason::kNone, c["status"] == "accepted") << name;
    const auto expected = kReasons.find(name);
    EXPECT_EQ(Name(reason), Name(expected == kReasons.end() ? Reason::kNone : expected->second))
        << name;
    ++compared;
  }
  EXPECT_EQ(compared, Cases().size());
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
