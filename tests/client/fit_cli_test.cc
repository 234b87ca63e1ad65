// kvbridge fit, as a script would run it.
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/base/file.h"
#include "core/base/strict_json.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::cli {
namespace {

namespace fs = std::filesystem;
using base::Json;
using ::testing::HasSubstr;

constexpr char kShards[] = "tests/data/golden/calib/main";
// Source layers that the generator of the shards mixed into each target layer.
const Json kTrueSources = {{0, 3, 2}, {1, 0, 2}, {1, 3, 0}, {2, 0, 1}, {3, 1, 2}, {3, 2, 1}};

class FitCliTest : public ::testing::Test {
 protected:
  std::string Path(const char* name) const { return (dir_ / name).string(); }

  // Exit code; stdout and stderr are in out() and err().
  int Run(const std::string& arguments) const {
    const std::string command =
        std::string(KVBRIDGE_CLI) + " " + arguments + " >" + Path("out") + " 2>" + Path("err");
    return WEXITSTATUS(std::system(command.c_str()));
  }
  std::string out() const { return *base::ReadFile(Path("out"), 1 << 24); }
  std::string err() const { return *base::ReadFile(Path("err"), 1 << 24); }
  Json json() const { return *base::ParseStrictJson(out(), "stdout"); }

  artifact::TempDir dir_;
};

TEST_F(FitCliTest, OneCommandFindsWhatTheGeneratorMixed) {
  ASSERT_EQ(Run(std::string("fit ") + kShards + " -q --format json -o " + Path("a")), 0) << err();
  const Json document = json();
  EXPECT_EQ(document["schema"], "kvbridge.fit-solve/v1");
  EXPECT_EQ(document["verdict"], "UNPROVEN");
  for (size_t l = 0; l < 6; ++l) {
    EXPECT_EQ(document["calibration"]["layers"][l]["key"]["sources"], kTrueSources[l]);
    EXPECT_EQ(document["calibration"]["layers"][l]["value"]["sources"], kTrueSources[l]);
  }
  EXPECT_EQ(Run("inspect " + Path("a")), 0) << err();
  EXPECT_THAT(out(), HasSubstr("every file verified"));
  EXPECT_FALSE(fs::exists(Path("a.moments")));
}

TEST_F(FitCliTest, TheTableSaysWhatWasChosenAndWhy) {
  ASSERT_EQ(Run(std::string("fit ") + kShards + " -q --k 2 --support full -o " + Path("a")), 0);
  EXPECT_THAT(out(), HasSubstr("k = 2 as asked"));
  EXPECT_THAT(out(), HasSubstr("480 fitted, 96 held out, weights from 576"));
}

TEST_F(FitCliTest, OneStepOrTwoGiveTheSameDigest) {
  ASSERT_EQ(Run(std::string("fit ") + kShards + " -q --format json -o " + Path("a")), 0);
  const Json whole = json()["artifact_digest"];
  ASSERT_EQ(Run(std::string("fit accumulate ") + kShards + " -q -o " + Path("m")), 0);
  ASSERT_EQ(
      Run("fit solve --threads 1 -q --format json --moments " + Path("m") + " -o " + Path("b")), 0);
  EXPECT_EQ(json()["artifact_digest"], whole);
}

TEST_F(FitCliTest, WhatFailedInTheSolveResumesFromItsMoments) {
  const std::string fit = std::string("fit ") + kShards + " -q --format json -o " + Path("a");
  EXPECT_EQ(Run(fit + " --budget 10KB"), 6);
  EXPECT_THAT(err(), HasSubstr("budget: expected room for at least 25344 parameters"));
  EXPECT_FALSE(fs::exists(Path("a")));
  EXPECT_EQ(Run(fit + " --resume --seed 9"), 3);
  EXPECT_THAT(err(), HasSubstr("expected moments of these shards and settings"));
  ASSERT_EQ(Run(fit + " --resume"), 0) << err();
  const Json resumed = json()["artifact_digest"];
  ASSERT_EQ(Run(fit + " --overwrite"), 0);
  EXPECT_EQ(json()["artifact_digest"], resumed);
}

TEST_F(FitCliTest, AFolderThatIsThereIsNotReplacedUnasked) {
  fs::create_directory(Path("a"));
  EXPECT_EQ(Run(std::string("fit ") + kShards + " -q -o " + Path("a")), 3);
  EXPECT_THAT(err(), HasSubstr("expected a new folder, or --overwrite"));
  EXPECT_FALSE(fs::exists(Path("a.moments")));
}

TEST_F(FitCliTest, FlagsThatExcludeEachOtherAreUsageErrors) {
  const std::string fit = std::string("fit ") + kShards + " -o " + Path("a");
  EXPECT_EQ(Run(fit + " --k 2 --sweep"), 2);
  EXPECT_EQ(Run(fit + " --k 2 --budget 1MB"), 2);
  EXPECT_EQ(Run(fit + " --lambda-convention raw_gram"), 2);
  EXPECT_EQ(Run("fit --k 2 merge " + Path("m") + " -o " + Path("b")), 2);
  EXPECT_EQ(Run("fit"), 2);
}

TEST_F(FitCliTest, FlagsThatDoNotReadAreUsageErrorsBeforeAnyWork) {
  const std::string accumulate = std::string("fit accumulate ") + kShards + " -o " + Path("m");
  for (const char* machine : {"0/2", "3/2", "2", "1/2/3", "a/b"}) {
    EXPECT_EQ(Run(accumulate + " --shard " + machine), 2);
    EXPECT_THAT(err(), HasSubstr(std::string("expected I/N with I from 1 to N, got ") + machine));
  }
  EXPECT_EQ(Run(accumulate + " --domain-weight code=much"), 2);
  EXPECT_THAT(err(), HasSubstr("expected DOMAIN=WEIGHT with a weight above 0, got code=much"));
  EXPECT_FALSE(fs::exists(Path("m")));
  ASSERT_EQ(Run(accumulate + " -q --format json --dry-run --shard 2/2"), 0) << err();
  EXPECT_EQ(json()["sequences"], 3);
  EXPECT_EQ(Run(accumulate + " -q --dry-run --domain-weight a=2 --domain-weight b=0.5"), 3);
  EXPECT_THAT(err(), HasSubstr("weight of domain a: no sequence has it"));
}

TEST_F(FitCliTest, NetworksAreTrainedOrSaidToNeedLibTorch) {
  ASSERT_EQ(Run(std::string("fit ") + kShards + " -q -o " + Path("a")), 0) << err();
  const int code =
      Run(std::string("fit mlp ") + kShards + " -q --format json --hidden 8 --epochs 2" +
          " --threads 1 --base " + Path("a") + " -o " + Path("b"));
  EXPECT_FALSE(fs::exists(Path("b.networks")));
  if (code == 4) {
    EXPECT_THAT(err(), HasSubstr("KVBRIDGE_TORCH_DIR"));
    EXPECT_FALSE(fs::exists(Path("b")));
    return;
  }
  ASSERT_EQ(code, 0) << err();
  EXPECT_EQ(json()["schema"], "kvbridge.fit-mlp/v1");
  EXPECT_EQ(json()["network"]["layers"].size(), 6);
  EXPECT_EQ(json()["network"]["rows"]["fit"], 480);
  EXPECT_EQ(Run("inspect " + Path("b")), 0) << err();
}

TEST_F(FitCliTest, TheTargetsKNormMustFitTheMoments) {
  EXPECT_EQ(Run(std::string("fit ") + kShards + " -q -o " + Path("a") +
                " --target-model tests/data/family/large"),
            3);
  EXPECT_THAT(err(), HasSubstr("k_norm.weight: expected"));
}

}  // namespace
}  // namespace kvbridge::cli
