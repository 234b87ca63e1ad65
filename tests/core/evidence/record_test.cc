#include "core/evidence/record.h"

#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>

#include "core/evidence/random_map.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/evidence/synthetic_run.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::evidence {
namespace {

using artifact::Verdict;

class RecordTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(testing::TempDir()) /
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    digest_ = artifact::SaveArtifact(dir_, *artifact::SyntheticMapper(), {}, {.pool = pool_.get()})
                  .value();
    SyntheticRun synthetic;
    synthetic.kl["mapped.tail17"] = 0.05;
    run_ = synthetic.Make({"code", "general"});
    run_.artifact = digest_;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  artifact::Evidence Evidence() const {
    const RunSummary summary = Summarize(run_);
    return MakeEvidence(gate_, run_, summary, Judge(gate_, run_, summary));
  }
  absl::StatusOr<std::string> Record() {
    return RecordEvidence(dir_, run_, Evidence(), {.pool = pool_.get()});
  }
  artifact::Artifact Load() const {
    return artifact::LoadArtifact(dir_, {.pool = pool_.get()}).value();
  }

  std::unique_ptr<base::WorkerPool> pool_ = base::WorkerPool::Create({.threads = 2}).value();
  const Gate gate_ =
      ParseGate(test::ReadTestFile("configs/gates/default.yaml"), "gate.yaml").value();
  std::filesystem::path dir_;
  std::string digest_;
  EvidenceRun run_;
};

TEST_F(RecordTest, TheManifestSaysWhatWasMeasuredAndByWhichGate) {
  const std::string digest = Record().value();
  EXPECT_NE(digest, digest_);
  const artifact::Artifact artifact = Load();
  EXPECT_EQ(artifact.mapper->digest, digest);
  EXPECT_EQ(artifact.provenance.verdict(), Verdict::kPass);
  const artifact::Evidence& evidence = *artifact.provenance.evidence;
  EXPECT_NEAR(*evidence.kl_nats, 0.1, 0.01);
  EXPECT_NEAR(*evidence.gap_recovered, 0.8, 0.03);
  ASSERT_EQ(evidence.tails.size(), 2u);
  EXPECT_EQ(evidence.tails[1].native_tail, 17);
  EXPECT_NEAR(evidence.tails[1].kl_nats, 0.05, 0.01);
  EXPECT_EQ(evidence.details["run_sha256"], run_.digest);
  EXPECT_EQ(evidence.details["gate_sha256"], gate_.digest);
  EXPECT_EQ(evidence.details["measured_artifact"], digest_);
  EXPECT_EQ(evidence.details["domains"]["code"]["sequences"], 40);
  EXPECT_NE(evidence.provenance.find("80 sequences of code, general"), std::string::npos);
}

TEST_F(RecordTest, RecordingAgainChangesNothing) {
  const std::string digest = Record().value();
  EXPECT_EQ(Record().value(), digest);
}

TEST_F(RecordTest, ARunOfAnotherArtifactIsRefusedAndNothingChanges) {
  run_.artifact = std::string(64, 'b');
  EXPECT_EQ(Record().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Load().mapper->digest, digest_);
}

TEST_F(RecordTest, AnInterruptionLeavesTheArtifactAsItWas) {
  const auto stop = [] { return absl::CancelledError("interrupted"); };
  EXPECT_EQ(RecordEvidence(dir_, run_, Evidence(), {.pool = pool_.get(), .before_commit = stop})
                .status()
                .code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(Load().mapper->digest, digest_);
}

TEST_F(RecordTest, ARunWithoutSequencesIsUnproven) {
  run_.sequences.clear();
  const artifact::Evidence evidence = Evidence();
  EXPECT_EQ(evidence.verdict, Verdict::kUnproven);
  EXPECT_EQ(evidence.kl_nats, std::nullopt);
}

double Norm(const mapper::TensorRef& weight, int head) {
  std::vector<float> values(weight.data.size() / 4);
  tensor::DecodeRow(weight.dtype, weight.data.data(), 1, values.data(), values.size());
  const size_t block = values.size() / weight.shape[0];
  double squares = 0;
  for (size_t i = head * block; i < (head + 1) * block; ++i) squares += values[i] * values[i];
  return std::sqrt(squares);
}

TEST(RandomMapTest, KeepsEachHeadsNormAndNothingElseOfTheWeights) {
  const auto mapper = artifact::SyntheticMapper();
  const mapper::Mapper random = RandomMap(*mapper, 1);
  for (size_t layer = 0; layer < mapper->keys.size(); ++layer) {
    for (const int head : {0, 1}) {
      EXPECT_NEAR(Norm(random.keys[layer].weight, head), Norm(mapper->keys[layer].weight, head),
                  1e-5);
    }
    EXPECT_NE(std::memcmp(random.values[layer].weight.data.data(),
                          mapper->values[layer].weight.data.data(),
                          mapper->values[layer].weight.data.size()),
              0);
    EXPECT_EQ(random.keys[layer].bias.data.data(), mapper->keys[layer].bias.data.data());
  }
  EXPECT_TRUE(mapper::Validate(random).ok());
}

TEST(RandomMapTest, NetworksAreRandomToo) {
  const auto mapper = artifact::SyntheticMapper({.support = mapper::Support::kMlp, .hidden = {4}});
  const mapper::Mapper random = RandomMap(*mapper, 1);
  EXPECT_TRUE(mapper::Validate(random).ok());
  for (const auto part : {&mapper::LayerMap::weight, &mapper::LayerMap::out}) {
    EXPECT_EQ((random.keys[0].*part).shape, (mapper->keys[0].*part).shape);
  }
  EXPECT_NE(random.keys[0].out.data.data(), mapper->keys[0].out.data.data());
  EXPECT_NE(random.keys[0].hidden[0].weight.data.data(),
            mapper->keys[0].hidden[0].weight.data.data());
}

TEST(RandomMapTest, TheSeedDecides) {
  const auto mapper = artifact::SyntheticMapper();
  const auto bytes = [&](uint64_t seed) {
    const mapper::Mapper random = RandomMap(*mapper, seed);
    const auto data = random.keys[0].weight.data;
    return std::vector<std::byte>(data.begin(), data.end());
  };
  EXPECT_EQ(bytes(1), bytes(1));
  EXPECT_NE(bytes(1), bytes(2));
}

}  // namespace
}  // namespace kvbridge::evidence
