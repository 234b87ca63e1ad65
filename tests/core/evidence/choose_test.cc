#include "core/evidence/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvbridge::evidence {
namespace {

using ::testing::HasSubstr;

// Eight sequences of each text; KL is 0.3 plus what is given, with a part that all runs share.
EvidenceRun Scores(double prose, double code, double wobble = 0) {
  EvidenceRun run;
  run.prefix_tokens = 383;
  for (const char* domain : {"code", "prose"}) {
    run.texts[domain] = {8, std::string(64, domain[0])};
    for (int i = 0; i < 8; ++i) {
      const double kl =
          0.3 + 0.1 * i + (domain[0] == 'c' ? code : prose) + (i % 2 == 0 ? wobble : -wobble);
      run.sequences.push_back({.domain = domain,
                               .sequence = i,
                               .prefix_tokens = 383,
                               .tokens = 128,
                               .variants = {{"mapped", {.kl = kl, .top1 = 0.5, .nll = 3}}}});
    }
  }
  return run;
}

TEST(ChooseTest, WhatIsSurelyBetterTakesThePlace) {
  // Differences between sequences, larger than that between the maps, cancel: they are paired.
  const std::vector<EvidenceRun> runs = {Scores(0, 0), Scores(-0.02, -0.01)};
  const Choice choice = Choose(runs).value();
  EXPECT_EQ(choice.chosen, 1u);
  ASSERT_EQ(choice.comparisons.size(), 1u);
  EXPECT_NEAR(choice.comparisons[0].all.value, -0.015, 1e-12);
  EXPECT_NEAR(choice.comparisons[0].texts.at("code").value, -0.01, 1e-12);
}

TEST(ChooseTest, ADifferenceThatOtherTextMightUndoChangesNothing) {
  const std::vector<EvidenceRun> runs = {Scores(0, 0), Scores(-0.01, -0.01, 0.1)};
  const Choice choice = Choose(runs).value();
  EXPECT_LT(choice.comparisons[0].all.value, 0);
  EXPECT_GT(choice.comparisons[0].all.high, 0);
  EXPECT_EQ(choice.chosen, 0u);
}

TEST(ChooseTest, WhatIsSurelyWorseOnOneTextIsNotChosen) {
  const std::vector<EvidenceRun> runs = {Scores(0, 0), Scores(-0.2, 0.02), Scores(-0.1, 0)};
  const Choice choice = Choose(runs).value();
  EXPECT_FALSE(choice.comparisons[0].wins);
  EXPECT_EQ(choice.comparisons[1].standing, 0u);
  EXPECT_EQ(choice.chosen, 2u);
}

TEST(ChooseTest, RunsOfOtherSequencesAreRefused) {
  std::vector<EvidenceRun> runs = {Scores(0, 0), Scores(0, 0)};
  runs[1].sequences.pop_back();
  EXPECT_EQ(Choose(runs).status().code(), absl::StatusCode::kFailedPrecondition);
  runs[1] = Scores(0, 0);
  runs[1].texts["code"].sha256[0] = 'x';
  EXPECT_THAT(std::string(Choose(runs).status().message()),
              HasSubstr("the text code of the first"));
  runs[1] = Scores(0, 0);
  runs[1].sequences[3].variants["mapped"].kl.reset();
  EXPECT_THAT(std::string(Choose(runs).status().message()),
              HasSubstr("sequence 3 of code after 383 tokens"));
}

}  // namespace
}  // namespace kvbridge::evidence
