#include "core/evidence/run.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "tests/core/evidence/synthetic_run.h"

namespace kvbridge::evidence {
namespace {

using base::Json;

class RunTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(testing::TempDir()) /
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_ / "scores");
    Write("run.json", head_);
    SyntheticRun synthetic;
    synthetic.sequences = 3;
    for (const SequenceScores& scores : synthetic.Make().sequences) {
      Write("scores/general-" + std::to_string(scores.sequence) + ".json", ToJson(scores));
    }
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const std::string& name, const Json& json) {
    ASSERT_TRUE(base::WriteFileAtomic(dir_ / name, json.dump()).ok());
  }
  Json Read(const std::string& name) const {
    return Json::parse(base::ReadFile(dir_ / name, 1 << 20).value());
  }

  std::filesystem::path dir_;
  Json head_ = {{"schema", "kvbridge-run/1"},
                {"artifact", std::string(64, 'a')},
                {"prefix_tokens", 383},
                {"texts", {{"general", {{"sequences", 3}, {"sha256", std::string(64, 'e')}}}}},
                {"not_applicable", Json::object()},
                {"protocol", Json::object()}};
};

TEST_F(RunTest, IsReadBack) {
  const EvidenceRun run = ReadRun(dir_).value();
  EXPECT_EQ(run.prefix_tokens, 383);
  EXPECT_EQ(run.texts.at("general").sequences, 3);
  ASSERT_EQ(run.sequences.size(), 3u);
  SyntheticRun synthetic;
  synthetic.sequences = 3;
  EXPECT_EQ(run.sequences, synthetic.Make().sequences);
}

TEST_F(RunTest, AnyFigureChangesTheDigest) {
  const std::string before = ReadRun(dir_)->digest;
  EXPECT_EQ(before, ReadRun(dir_)->digest);
  Json scores = Read("scores/general-1.json");
  scores["variants"]["mapped"]["kl"] = 0.0;
  Write("scores/general-1.json", scores);
  const std::string changed = ReadRun(dir_)->digest;
  EXPECT_NE(changed, before);
  head_["protocol"]["seed"] = 1;
  Write("run.json", head_);
  EXPECT_NE(ReadRun(dir_)->digest, changed);
}

TEST_F(RunTest, TheSameSequenceTwiceIsRefused) {
  Write("scores/copy.json", Read("scores/general-1.json"));
  EXPECT_EQ(ReadRun(dir_).status().message(), "scores: sequence 1 of general is there twice");
}

TEST_F(RunTest, ATextThatWasNotPlannedIsRefused) {
  Json scores = Read("scores/general-1.json");
  scores["domain"] = "code";
  Write("scores/general-1.json", scores);
  EXPECT_EQ(ReadRun(dir_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RunTest, WhatIsWrongIsNamed) {
  const auto refused = [this](const std::string& key, const Json& value) {
    Json head = head_;
    head[key] = value;
    Write("run.json", head);
    const absl::Status status = ReadRun(dir_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << key;
    EXPECT_NE(status.message().find("run." + key), absl::string_view::npos) << status;
  };
  refused("schema", "kvbridge-run/2");
  refused("prefix_tokens", 0);
  refused("texts", {{"general", {{"sequences", 3}, {"sha256", "e"}}}});
  refused("extra", 1);
  std::filesystem::remove(dir_ / "run.json");
  EXPECT_EQ(ReadRun(dir_).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RunTest, ScoresThatAreNoScoresAreRefused) {
  for (const Json& bad :
       {Json::array(), Json{{"schema", "kvbridge-scores/1"}}, Json{{"variants", 3}}}) {
    Write("scores/general-1.json", bad);
    EXPECT_EQ(ReadRun(dir_).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace kvbridge::evidence
