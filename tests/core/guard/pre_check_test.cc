#include "core/guard/pre_check.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_backend.h"

namespace kvbridge::guard {
namespace {

using test::FakeModel;

class PreCheckTest : public testing::Test {
 protected:
  PreCheckTest() {
    spec_.request_id = "req-1";
    spec_.source = source_;
    spec_.target = target_;
    spec_.tokens = 100;
    spec_.key_state = KeyState::kRoped;
  }

  std::variant<Admissible, Refusal> Check() {
    return PreCheck(spec_, policy_, {source_, target_, proven_, 1000, now_, digest_});
  }
  int64_t Covered() { return std::get<Admissible>(Check()).covered_tokens; }
  Refusal Refused() {
    auto answer = Check();
    if (auto* refusal = std::get_if<Refusal>(&answer)) return *refusal;
    return {Outcome::kApplied, Reason::kNone, "admitted"};
  }

  const model::ModelSpec source_ = FakeModel("small", 2, 2, 8);
  const model::ModelSpec target_ = FakeModel("large", 3, 2, 8);
  TransferSpec spec_;
  RoutePolicy policy_;
  bool proven_ = true;
  const absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  const std::string digest_ = std::string(64, 'd');
};

TEST_F(PreCheckTest, TextsOfTheCallerAreBoundedAndDigestsAreDigests) {
  spec_.tenant = std::string(257, 't');
  EXPECT_EQ(Refused().reason, Reason::kInvalidRequest);
  EXPECT_EQ(Refused().detail, "tenant: expected at most 256 bytes, got 257");
  spec_.tenant.pop_back();
  for (const std::string& digest : {std::string("abc"), std::string(64, 'F')}) {
    spec_.token_ids_sha256 = digest;
    EXPECT_EQ(Refused().reason, Reason::kInvalidRequest) << digest;
  }
  spec_.token_ids_sha256 = std::string(64, 'f');
  EXPECT_EQ(Refused().detail, "admitted");
}

TEST_F(PreCheckTest, ANegativePositionBoundIsNotUnbounded) {
  spec_.target.rope.max_position = -1;
  EXPECT_EQ(Refused().reason, Reason::kInvalidRequest);
  EXPECT_EQ(Refused().detail, "target.rope.max_position: expected 0 or more, got -1");
}

TEST_F(PreCheckTest, CoversAllButTheLastTokenByDefault) {
  EXPECT_EQ(Covered(), 99);
  const auto answer = std::get<Admissible>(Check());
  EXPECT_TRUE(answer.publish);
  EXPECT_FALSE(answer.shadow_selected);
}

TEST_F(PreCheckTest, CoveredTokensIsTheLeastOfSelectionTailAndCaps) {
  struct Case {
    int64_t tokens, prompt, covered;
    int32_t tail = 1, route_tail = 1;
    int64_t cap = 0, route_cap = 0;
  };
  for (const Case& c : std::vector<Case>{
           {.tokens = 100, .prompt = 0, .covered = 99},
           {.tokens = 100, .prompt = 100, .covered = 99},
           {.tokens = 100, .prompt = 500, .covered = 100},
           {.tokens = 5, .prompt = 4, .covered = 3},
           {.tokens = 100, .prompt = 100, .covered = 83, .tail = 17},
           {.tokens = 100, .prompt = 100, .covered = 35, .tail = 17, .route_tail = 65},
           {.tokens = 100, .prompt = 0, .covered = 99, .tail = -4},
           {.tokens = 100, .prompt = 0, .covered = 50, .cap = 50},
           {.tokens = 100, .prompt = 0, .covered = 40, .cap = 50, .route_cap = 40}}) {
    spec_.tokens = c.tokens;
    spec_.prompt_tokens = c.prompt;
    spec_.native_tail = c.tail;
    policy_.native_tail = c.route_tail;
    spec_.max_covered_tokens = c.cap;
    policy_.max_covered_tokens = c.route_cap;
    EXPECT_EQ(Covered(), c.covered) << c.tokens << " of " << c.prompt;
  }
}

TEST_F(PreCheckTest, OneTokenLeavesNothingToCover) {
  spec_.tokens = 1;
  EXPECT_EQ(Refused().reason, Reason::kNotWorthIt);
  spec_.tokens = 100;
  spec_.native_tail = 100;
  EXPECT_EQ(Refused().reason, Reason::kNotWorthIt);
}

TEST_F(PreCheckTest, FewerThanTheRoutesLeastIsNotWorthIt) {
  policy_.min_covered_tokens = 100;
  EXPECT_EQ(Refused().reason, Reason::kNotWorthIt);
  policy_.min_covered_tokens = 99;
  EXPECT_EQ(Covered(), 99);
}

TEST_F(PreCheckTest, MalformedRequestsAreInvalidAndNameTheField) {
  struct Case {
    std::string field;
    std::function<void(TransferSpec&)> spoil;
  };
  const std::vector<Case> cases = {
      {"request_id", [](auto& s) { s.request_id = ""; }},
      {"request_id", [](auto& s) { s.request_id = std::string(129, 'x'); }},
      {"request_id", [](auto& s) { s.request_id = "a\nb"; }},
      {"request_id", [](auto& s) { s.request_id = "caf\xc3\xa9"; }},
      {"source_selection.tokens", [](auto& s) { s.tokens = 0; }},
      {"source_selection.tokens", [](auto& s) { s.tokens = -5; }},
      {"source_selection.positions",
       [](auto& s) {
         s.position_list = {0, 1, 2};
       }},
      {"source_selection.key_state", [](auto& s) { s.key_state = KeyState::kUnspecified; }},
      {"prompt_tokens", [](auto& s) { s.prompt_tokens = -1; }},
      {"hops", [](auto& s) { s.hops = -1; }},
      {"limits.max_covered_tokens", [](auto& s) { s.max_covered_tokens = -1; }},
      {"limits.max_latency", [](auto& s) { s.max_latency = -absl::Seconds(1); }},
  };
  for (const Case& c : cases) {
    const TransferSpec good = spec_;
    c.spoil(spec_);
    const Refusal refusal = Refused();
    EXPECT_EQ(refusal.reason, Reason::kInvalidRequest) << c.field;
    EXPECT_EQ(refusal.outcome, Outcome::kFallbackReprefill);
    EXPECT_THAT(refusal.detail, testing::StartsWith(c.field + ": expected"));
    spec_ = good;
  }
}

TEST_F(PreCheckTest, RequestIdOf128PrintableCharactersIsFine) {
  spec_.request_id = std::string(127, '~') + " ";
  EXPECT_EQ(Covered(), 99);
}

TEST_F(PreCheckTest, TooManyTokensIsTokenLimit) {
  spec_.tokens = 1001;
  EXPECT_EQ(Refused().reason, Reason::kTokenLimit);
  spec_.tokens = int64_t{1} << 62;
  EXPECT_EQ(Refused().reason, Reason::kTokenLimit);
  spec_.tokens = 1000;
  EXPECT_EQ(Covered(), 999);
}

TEST_F(PreCheckTest, PastDeadlineAndEmptyBudgetEndAtOnce) {
  spec_.deadline = now_;
  EXPECT_EQ(Refused().reason, Reason::kDeadlineExceeded);
  spec_.deadline = now_ + absl::Nanoseconds(1);
  spec_.max_latency = absl::ZeroDuration();
  EXPECT_EQ(Refused().reason, Reason::kLatencyBudget);
}

TEST_F(PreCheckTest, ModelDifferencesAreNamed) {
  struct Case {
    Outcome outcome;
    Reason reason;
    std::string field;
    std::function<void(TransferSpec&)> spoil;
  };
  constexpr Outcome kFallback = Outcome::kFallbackReprefill;
  const std::vector<Case> cases = {
      {kFallback, Reason::kIncompatibleModel, "source.identity.revision",
       [](auto& s) { s.source.identity.revision = "r2"; }},
      {kFallback, Reason::kIncompatibleModel, "target.identity.tokenizer_sha256",
       [](auto& s) { s.target.identity.tokenizer_sha256 = std::string(64, 'b'); }},
      {kFallback, Reason::kIncompatibleModel, "source.rope.params.rotary_dim",
       [](auto& s) {
         s.source.rope.params.rotary_dim = 2;
         s.source.rope.params.inv_freq = {1.0};
       }},
      {kFallback, Reason::kShapeMismatch, "source.geometry.layers",
       [](auto& s) { s.source.geometry.layers = 4; }},
      {kFallback, Reason::kShapeMismatch, "target.geometry.head_dim",
       [](auto& s) { s.target.geometry.head_dim = 16; }},
      {kFallback, Reason::kShapeMismatch, "source.geometry.tp_degree",
       [](auto& s) { s.source.geometry.tp_degree = 2; }},
      {Outcome::kUnsupported, Reason::kIncompatibleModel, "source.identity.adapter_digest",
       [](auto& s) { s.source.identity.adapter_digest = std::string(64, 'c'); }},
      {Outcome::kUnsupported, Reason::kIncompatibleModel, "target.identity.modality_digest",
       [](auto& s) { s.target.identity.modality_digest = std::string(64, 'c'); }},
      {Outcome::kUnsupported, Reason::kIncompatibleModel, "target.geometry.attention[1]",
       [](auto& s) {
         s.target.geometry.attention.assign(3, model::AttentionKind::kFull);
         s.target.geometry.attention[1] = model::AttentionKind::kSliding;
       }},
      {Outcome::kUnsupported, Reason::kIncompatibleModel, "source.geometry.attention[0]",
       [](auto& s) { s.source.geometry.attention.assign(2, model::AttentionKind::kUnknown); }},
  };
  for (const Case& c : cases) {
    const TransferSpec good = spec_;
    c.spoil(spec_);
    const Refusal refusal = Refused();
    EXPECT_EQ(refusal.outcome, c.outcome) << c.field;
    EXPECT_EQ(refusal.reason, c.reason) << c.field;
    EXPECT_THAT(refusal.detail, testing::StartsWith(c.field));
    spec_ = good;
  }
}

TEST_F(PreCheckTest, AnAppendNamesTheArtifactThatMappedThePrefix) {
  spec_.first_token = 60;
  EXPECT_EQ(Refused().reason, Reason::kInvalidRequest);
  EXPECT_THAT(Refused().detail, testing::StartsWith("artifact_digest: expected"));
  spec_.artifact_digest = std::string(64, 'e');
  EXPECT_EQ(Refused().reason, Reason::kArtifactUnavailable);
  spec_.artifact_digest = digest_;
  EXPECT_EQ(Covered(), 99);
}

TEST_F(PreCheckTest, AnAppendMapsAtLeastOneTokenOfTheSelection) {
  spec_.artifact_digest = digest_;
  spec_.first_token = 98;
  EXPECT_EQ(Covered(), 99);
  spec_.first_token = 99;
  EXPECT_EQ(Refused().reason, Reason::kNotWorthIt);
  for (const int64_t first : {100, -1}) {
    spec_.first_token = first;
    EXPECT_EQ(Refused().reason, Reason::kInvalidRequest);
    EXPECT_THAT(Refused().detail, testing::StartsWith("first_token: expected"));
  }
  spec_.first_token = 90;
  policy_.min_covered_tokens = 10;
  EXPECT_EQ(Refused().reason, Reason::kNotWorthIt) << "tokens mapped before do not count";
}

TEST_F(PreCheckTest, MapsDoNotChainUnlessTheRouteAllows) {
  spec_.hops = 1;
  EXPECT_EQ(Refused().reason, Reason::kAppGate);
  policy_.max_hops = 2;
  EXPECT_EQ(Covered(), 99);
  spec_.hops = 2;
  EXPECT_EQ(Refused().reason, Reason::kAppGate);
}

TEST_F(PreCheckTest, StageOffRefusesWhateverElseHolds) {
  policy_.stage = RouteStage::kOff;
  spec_.source.geometry.layers = 99;
  EXPECT_EQ(Refused().reason, Reason::kRouteDisabled);
}

TEST_F(PreCheckTest, ShadowIsMappedEvenUnprovenAndNotPublished) {
  policy_.stage = RouteStage::kShadow;
  proven_ = false;
  EXPECT_FALSE(std::get<Admissible>(Check()).publish);
}

TEST_F(PreCheckTest, UnprovenPastShadowNeedsTheOperatorsWord) {
  proven_ = false;
  EXPECT_EQ(Refused().reason, Reason::kUnprovenPair);
  policy_.allow_unproven = true;
  EXPECT_EQ(Covered(), 99);
}

TEST_F(PreCheckTest, CanaryTakesItsShareByHash) {
  policy_.stage = RouteStage::kCanary;
  policy_.canary_share = 0.36;  // the bucket of req-1 is 0.3560...
  EXPECT_EQ(Covered(), 99);
  policy_.canary_share = 0.35;
  EXPECT_EQ(Refused().reason, Reason::kRouteDisabled);
}

TEST_F(PreCheckTest, ADrillTakesItsShareByASampleOfItsOwn) {
  policy_.stage = RouteStage::kCanary;
  policy_.canary_share = 0.36;
  policy_.drill = {Reason::kDeviceOom, 0.41};  // the bucket of req-1 is 0.4022...
  const Refusal no = Refused();
  EXPECT_EQ(no.outcome, Outcome::kFallbackReprefill);
  EXPECT_EQ(no.reason, Reason::kDeviceOom);
  EXPECT_EQ(no.detail, "drill: 41 % of transfers fall back with device_oom");
  EXPECT_TRUE(no.drill);
  policy_.drill.share = 0.4;
  EXPECT_EQ(Covered(), 99);
}

TEST_F(PreCheckTest, WhatIsWrongInEarnestIsNoDrill) {
  policy_.drill = {Reason::kDraining, 1};
  spec_.hops = 1;
  EXPECT_EQ(Refused().reason, Reason::kAppGate);
  EXPECT_FALSE(Refused().drill);
  spec_.hops = 0;
  spec_.tokens = 1;
  EXPECT_EQ(Refused().reason, Reason::kNotWorthIt);
  spec_.tokens = 2;
  EXPECT_EQ(Refused().reason, Reason::kDraining);
}

TEST_F(PreCheckTest, ShadowSampleIsTheGoldenOne) {
  policy_.shadow_rate = 0.36;
  EXPECT_TRUE(std::get<Admissible>(Check()).shadow_selected);
  policy_.shadow_rate = 0.35;
  EXPECT_FALSE(std::get<Admissible>(Check()).shadow_selected);
}

}  // namespace
}  // namespace kvbridge::guard
