#include "core/evidence/judge.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "tests/core/evidence/synthetic_run.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::evidence {
namespace {

using artifact::Verdict;

Gate DefaultGate() {
  return ParseGate(test::ReadTestFile("configs/gates/default.yaml"), "gate.yaml").value();
}

Gate OneRule(const std::string& rule) {
  const std::string text =
      "schema: kvbridge-gate/1\nname: one\nnative_tail: 1\nmin_sequences: 20\n"
      "identity_kl_max: 0.01\ndomains: {general: {" +
      rule + "}}\n";
  return ParseGate(text, "gate").value();
}

Judgement JudgeRun(const Gate& gate, const EvidenceRun& run) {
  return Judge(gate, run, Summarize(run));
}

const Check& Find(const Judgement& judgement, const std::string& rule) {
  static const Check kNone;
  const auto it = std::find_if(judgement.checks.begin(), judgement.checks.end(),
                               [&](const Check& check) { return check.rule == rule; });
  EXPECT_NE(it, judgement.checks.end()) << rule;
  return it == judgement.checks.end() ? kNone : *it;
}

TEST(JudgeTest, AGoodMapperPassesTheDefaultGate) {
  const Judgement judgement = JudgeRun(DefaultGate(), SyntheticRun().Make({"general", "code"}));
  EXPECT_EQ(judgement.verdict, Verdict::kPass);
  for (const Check& check : judgement.checks) {
    EXPECT_EQ(check.outcome, Outcome::kHeld) << check.domain << " " << check.rule << check.why;
  }
}

TEST(JudgeTest, TheWrongPairFails) {
  SyntheticRun wrong;
  wrong.kl["mapped"] = 2.9;
  wrong.top1["mapped"] = 0.1;
  EXPECT_EQ(JudgeRun(DefaultGate(), wrong.Make()).verdict, Verdict::kFail);
}

// Shuffled rows leave nothing but the mean cache, which is about as far as no prefix.
TEST(JudgeTest, ShuffledRowsFail) {
  SyntheticRun shuffled;
  shuffled.kl["mapped"] = 0.62;
  const Judgement judgement = JudgeRun(DefaultGate(), shuffled.Make());
  EXPECT_EQ(judgement.verdict, Verdict::kFail);
  EXPECT_EQ(Find(judgement, "nearer_than.none").outcome, Outcome::kBroken);
}

TEST(JudgeTest, CodeAloneIsNotEnough) {
  EXPECT_EQ(JudgeRun(DefaultGate(), SyntheticRun().Make({"code"})).verdict, Verdict::kUnproven);
  EvidenceRun mixed = SyntheticRun().Make({"code"});
  SyntheticRun bad;
  bad.kl["mapped"] = 0.55;
  const EvidenceRun general = bad.Make({"general"});
  mixed.texts["general"] = general.texts.at("general");
  mixed.sequences.insert(mixed.sequences.end(), general.sequences.begin(), general.sequences.end());
  EXPECT_EQ(JudgeRun(DefaultGate(), mixed).verdict, Verdict::kFail);
}

TEST(JudgeTest, TooFewSequencesProveNothing) {
  SyntheticRun few;
  few.sequences = 19;
  const Judgement judgement = JudgeRun(DefaultGate(), few.Make());
  EXPECT_EQ(judgement.verdict, Verdict::kUnproven);
  EXPECT_EQ(Find(judgement, "sequences").why, "too few sequences");
}

// Who stops when the figures look well has not kept to the plan.
TEST(JudgeTest, AnUnfinishedRunProvesNothing) {
  EvidenceRun run = SyntheticRun().Make();
  run.texts["general"].sequences = 41;
  const Judgement judgement = JudgeRun(DefaultGate(), run);
  EXPECT_EQ(judgement.verdict, Verdict::kUnproven);
  EXPECT_EQ(Find(judgement, "sequences").why, "the run is not complete");
}

TEST(JudgeTest, AMissingControlProvesNothing) {
  for (const std::string control : {"none", "raw", "random", "identity", "source"}) {
    SyntheticRun without;
    without.kl.erase(control);
    EXPECT_EQ(JudgeRun(DefaultGate(), without.Make()).verdict, Verdict::kUnproven) << control;
  }
}

TEST(JudgeTest, OnlyTheRawCacheMayNotExist) {
  SyntheticRun without;
  without.kl.erase("raw");
  EvidenceRun run = without.Make();
  run.not_applicable["raw"] = "heads differ";
  EXPECT_EQ(JudgeRun(DefaultGate(), run).verdict, Verdict::kPass);
  without.kl.erase("random");
  run = without.Make();
  run.not_applicable = {{"raw", "heads differ"}, {"random", "we'd rather not"}};
  EXPECT_EQ(JudgeRun(DefaultGate(), run).verdict, Verdict::kUnproven);
}

TEST(JudgeTest, AHarnessThatCantReturnACacheProvesNothing) {
  SyntheticRun broken;
  broken.kl["identity"] = 0.02;
  const Judgement judgement = JudgeRun(DefaultGate(), broken.Make());
  EXPECT_EQ(judgement.verdict, Verdict::kUnproven);
  EXPECT_EQ(Find(judgement, "identity_kl_max").outcome, Outcome::kOpen);
}

struct RuleCase {
  const char* rule;
  const char* held;
  const char* open;    // within the interval
  const char* broken;  // beyond it
};

TEST(JudgeTest, EachRuleIsHeldOpenOrBrokenByItsInterval) {
  // Mapped: KL 0.1 +- 0.02 between 40 sequences, so +- 0.006 of the mean.
  const EvidenceRun run = SyntheticRun().Make();
  const DomainSummary summary = Summarize(run).domains.at("general");
  const VariantSummary& mapped = summary.variants.at("mapped");
  const auto text = [](double value) { return std::to_string(value); };
  const std::map<std::string, Estimate> figures = {
      {"kl_mean_max", mapped.kl->mean},
      {"kl_p95_max", mapped.kl->p95},
      {"top1_min", *mapped.top1},
      {"gap_min", *mapped.gap},
      {"context_min", *mapped.context},
      {"worst_layer_cosine_min", summary.layers.at("mapped").worst_cosine},
  };
  for (const auto& [rule, figure] : figures) {
    const bool ceiling = rule.ends_with("_max");
    const double good = ceiling ? figure.high + 1e-3 : figure.low - 1e-3;
    const double bad = ceiling ? figure.low - 1e-3 : figure.high + 1e-3;
    EXPECT_EQ(Find(JudgeRun(OneRule(rule + ": " + text(good)), run), rule).outcome, Outcome::kHeld)
        << rule;
    EXPECT_EQ(Find(JudgeRun(OneRule(rule + ": " + text(bad)), run), rule).outcome, Outcome::kBroken)
        << rule;
    if (figure.high - figure.low < 1e-3) continue;  // top-1 is the same in every sequence here
    const double between = (figure.low + figure.high) / 2;
    EXPECT_EQ(Find(JudgeRun(OneRule(rule + ": " + text(between)), run), rule).outcome,
              Outcome::kOpen)
        << rule;
  }
  const auto nearer = [&](const char* share) {
    return JudgeRun(OneRule(std::string("nearer_than: {none: ") + share + "}"), run).verdict;
  };
  EXPECT_EQ(nearer("0.8"), Verdict::kPass);
  EXPECT_EQ(nearer("0.83"), Verdict::kUnproven);
  EXPECT_EQ(nearer("0.9"), Verdict::kFail);
}

TEST(JudgeTest, ADomainThatWasNotRunIsOpen) {
  const Judgement judgement = JudgeRun(OneRule("kl_mean_max: 1"), SyntheticRun().Make({"code"}));
  EXPECT_EQ(judgement.verdict, Verdict::kUnproven);
  EXPECT_EQ(Find(judgement, "domain").why, "the run has no text of it");
}

TEST(JudgeTest, WithoutAGapToTheSourceItsRuleIsHeldOrOpen) {
  SyntheticRun down;
  down.kl["source"] = 0;  // its NLL stays own's...
  EvidenceRun run = down.Make();
  for (SequenceScores& sequence : run.sequences) {
    sequence.variants.at("source").nll = sequence.variants.at("own").nll - 0.3;
  }
  EXPECT_EQ(Find(JudgeRun(OneRule("gap_min: 0.5"), run), "gap_min").outcome, Outcome::kHeld);
  for (SequenceScores& sequence : run.sequences) {
    sequence.variants.at("source").nll += sequence.sequence % 2 == 0 ? 0.6 : 0;
  }
  EXPECT_EQ(Find(JudgeRun(OneRule("gap_min: 0.5"), run), "gap_min").outcome, Outcome::kOpen);
}

TEST(JudgeTest, TheVerdictIsAboutTheGatesNativeTail) {
  SyntheticRun tails;
  tails.kl["mapped"] = 2;
  tails.kl["mapped.tail17"] = 0.05;
  tails.kl["none.tail17"] = 0.4;
  Gate gate = OneRule("kl_mean_max: 0.1, nearer_than: {none: 0.8}");
  gate.native_tail = 17;
  EXPECT_EQ(JudgeRun(gate, tails.Make()).verdict, Verdict::kPass);
  tails.kl["none.tail17"] = 0.06;  // the tail alone does it
  EXPECT_EQ(JudgeRun(gate, tails.Make()).verdict, Verdict::kFail);
  tails.kl.erase("none.tail17");  // a control without the tail would be too easy
  EXPECT_EQ(JudgeRun(gate, tails.Make()).verdict, Verdict::kUnproven);
}

}  // namespace
}  // namespace kvbridge::evidence
