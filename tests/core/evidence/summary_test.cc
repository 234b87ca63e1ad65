#include "core/evidence/summary.h"

#include <gtest/gtest.h>

#include "tests/core/evidence/synthetic_run.h"

namespace kvbridge::evidence {
namespace {

TEST(SummaryTest, SharesAreOfMeans) {
  SyntheticRun synthetic;
  synthetic.noise = 0;
  const RunSummary summary = Summarize(synthetic.Make());
  const DomainSummary& domain = summary.domains.at("general");
  EXPECT_EQ(domain.sequences, 40);
  EXPECT_EQ(domain.tokens, 40 * 128);
  EXPECT_NEAR(domain.source_excess->value, 0.5, 1e-12);
  const VariantSummary& mapped = domain.variants.at("mapped");
  EXPECT_NEAR(mapped.kl->mean.value, 0.1, 1e-12);
  EXPECT_NEAR(mapped.gap->value, (0.5 - 0.1) / 0.5, 1e-9);
  EXPECT_NEAR(mapped.context->value, (0.6 - 0.1) / 0.6, 1e-9);
  EXPECT_NEAR(mapped.nearer_than.at("raw").value, 1 - 0.1 / 0.8, 1e-9);
  EXPECT_NEAR(domain.variants.at("own").gap->value, 1, 1e-12);
  EXPECT_NEAR(domain.variants.at("source").gap->value, 0, 1e-12);
}

TEST(SummaryTest, QuantilesAreOverSequences) {
  SyntheticRun synthetic;
  synthetic.sequences = 21;
  EvidenceRun run = synthetic.Make();
  for (SequenceScores& sequence : run.sequences) {
    sequence.variants.at("mapped").kl = static_cast<double>(sequence.sequence) / 20;
  }
  const Spread kl = *Summarize(run).domains.at("general").variants.at("mapped").kl;
  EXPECT_NEAR(kl.p05, 0.05, 1e-12);
  EXPECT_NEAR(kl.p50, 0.5, 1e-12);
  EXPECT_NEAR(kl.p95.value, 0.95, 1e-12);
  EXPECT_EQ(kl.max, 1);
  EXPECT_LE(kl.p95.high, 1);
}

TEST(SummaryTest, APairedDifferenceIsNarrowerThanEitherFigure) {
  SyntheticRun synthetic;
  EvidenceRun run = synthetic.Make();
  for (SequenceScores& sequence : run.sequences) {  // sequences differ a lot, alike for both
    const double hard = sequence.sequence % 5;
    sequence.variants.at("none").kl = 1 + hard;
    sequence.variants.at("mapped").kl = (1 + hard) * (sequence.sequence % 2 == 0 ? 0.49 : 0.51);
  }
  const VariantSummary mapped = Summarize(run).domains.at("general").variants.at("mapped");
  EXPECT_GT(mapped.kl->mean.high - mapped.kl->mean.low, 0.3);
  const Estimate nearer = mapped.nearer_than.at("none");
  EXPECT_LT(nearer.high - nearer.low, 0.02);
}

TEST(SummaryTest, AVariantThatSomeSequencesLackIsLeftOut) {
  EvidenceRun run = SyntheticRun().Make();
  run.sequences[3].variants.erase("raw");
  const DomainSummary domain = Summarize(run).domains.at("general");
  EXPECT_EQ(domain.variants.count("raw"), 0u);
  EXPECT_EQ(domain.variants.at("mapped").nearer_than.count("raw"), 0u);
}

TEST(SummaryTest, DifferingVocabulariesLeaveTheNll) {
  EvidenceRun run = SyntheticRun().Make();
  for (SequenceScores& sequence : run.sequences) {
    sequence.variants.at("source").kl = sequence.variants.at("source").top1 = std::nullopt;
  }
  const DomainSummary domain = Summarize(run).domains.at("general");
  EXPECT_FALSE(domain.variants.at("source").kl.has_value());
  EXPECT_TRUE(domain.variants.at("mapped").gap.has_value());
}

TEST(SummaryTest, TheWorstLayerIsNamed) {
  const DomainSummary domain = Summarize(SyntheticRun().Make()).domains.at("general");
  EXPECT_EQ(domain.layers.at("mapped").worst, 1);
  EXPECT_NEAR(domain.layers.at("mapped").worst_cosine.value, 0.9, 0.01);
  EXPECT_EQ(domain.layers.at("mapped").cosine.size(), 3u);
}

TEST(SummaryTest, OtherPrefixLengthsAreBesideTheVerdicts) {
  EvidenceRun run = SyntheticRun().Make();
  EvidenceRun shorter = SyntheticRun().Make();
  for (SequenceScores& sequence : shorter.sequences) sequence.prefix_tokens = 64;
  run.sequences.insert(run.sequences.end(), shorter.sequences.begin(), shorter.sequences.end());
  const RunSummary summary = Summarize(run);
  EXPECT_EQ(summary.domains.at("general").sequences, 40);
  EXPECT_EQ(summary.lengths.at("general").size(), 2u);
}

TEST(VariantNameTest, StatesTailAndHops) {
  EXPECT_EQ(WithTail("mapped", 1), "mapped");
  EXPECT_EQ(WithTail("none", 17), "none.tail17");
  EXPECT_EQ(NativeTail("mapped.tail17"), 17);
  EXPECT_EQ(NativeTail("mapped.hops3"), 1);
  EXPECT_EQ(Hops("mapped.hops3.tail17"), 3);
}

}  // namespace
}  // namespace kvbridge::evidence
