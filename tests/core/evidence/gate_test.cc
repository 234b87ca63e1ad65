#include "core/evidence/gate.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include <gtest/gtest.h>

#include "tests/support/safetensors_lite.h"

namespace kvbridge::evidence {
namespace {

constexpr char kGate[] = R"(schema: kvbridge-gate/1
name: strict
native_tail: 17
min_sequences: 30
identity_kl_max: 0.01
domains:
  general:
    kl_mean_max: 0.2
    nearer_than: {none: 0.25}
  "*": {top1_min: 0.5}
)";

TEST(GateTest, TheShippedOneIsReadAndHasABoundForEveryText) {
  const Gate gate =
      ParseGate(test::ReadTestFile("configs/gates/default.yaml"), "gate.yaml").value();
  EXPECT_EQ(gate.name, "default");
  EXPECT_EQ(gate.native_tail, 1);
  EXPECT_EQ(gate.min_sequences, 20);
  EXPECT_EQ(gate.Find("general")->gap_min, 0.5);
  EXPECT_EQ(gate.Find("general")->nearer_than.at("random"), 0.5);
  EXPECT_EQ(gate.Find("code")->nearer_than.at("none"), 0.05);
}

TEST(GateTest, YamlAndJsonSayTheSame) {
  const Gate yaml = ParseGate(kGate, "gate").value();
  const Gate json = ParseGate(R"({"schema": "kvbridge-gate/1", "name": "strict", "native_tail": 17,
      "min_sequences": 30, "identity_kl_max": 0.01, "domains": {
      "general": {"kl_mean_max": 0.2, "nearer_than": {"none": 0.25}}, "*": {"top1_min": 0.5}}})",
                              "gate")
                        .value();
  for (const Gate* gate : {&yaml, &json}) {
    EXPECT_EQ(gate->native_tail, 17);
    EXPECT_EQ(gate->Find("general")->kl_mean_max, 0.2);
    EXPECT_EQ(gate->Find("general")->top1_min, std::nullopt);
    EXPECT_EQ(gate->Find("code")->top1_min, 0.5);
  }
  // The digest is of the bytes: it names the file.
  EXPECT_NE(yaml.digest, json.digest);
}

TEST(GateTest, ADomainWithoutRulesIsNotJudged) {
  const std::string text = absl::StrReplaceAll(kGate, {{"  \"*\": {top1_min: 0.5}\n", ""}});
  EXPECT_EQ(ParseGate(text, "gate")->Find("code"), nullptr);
}

struct Bad {
  const char* from;
  const char* to;
  const char* says;
};

TEST(GateTest, WhatIsWrongIsNamed) {
  for (const Bad& bad : {
           Bad{"kvbridge-gate/1", "kvbridge-gate/2", "gate.schema"},
           Bad{"kl_mean_max", "kl_men_max", "gate.domains.general.kl_men_max: unknown key"},
           Bad{"kl_mean_max: 0.2", "kl_mean_max: -1", "kl_mean_max: expected 0 or more, got -1"},
           Bad{"kl_mean_max: 0.2", "kl_mean_max: .nan", "gate.domains.general.kl_mean_max"},
           Bad{"kl_mean_max: 0.2", "kl_mean_max: \"0.2\"", "gate.domains.general.kl_mean_max"},
           Bad{"top1_min: 0.5", "top1_min: 50", "top1_min: expected 0 to 1, got 50"},
           Bad{"{none: 0.25}", "{nothing: 0.25}", "nearer_than.nothing: unknown key"},
           Bad{"{top1_min: 0.5}", "{}", "gate.domains.*: expected an object with at least one"},
           Bad{"min_sequences: 30", "min_sequences: 1", "min_sequences"},
           Bad{"min_sequences: 30", "min_sequences: 30\nmin_sequences: 31", "min_sequences"},
           Bad{"native_tail: 17\n", "", "native_tail"},
           Bad{"name: strict", "name: [", "gate.yaml: yaml-cpp"},
       }) {
    const std::string text = absl::StrReplaceAll(kGate, {{bad.from, bad.to}});
    const absl::Status status = ParseGate(text, "gate.yaml").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.to;
    EXPECT_TRUE(absl::StrContains(status.message(), bad.says)) << bad.to << ": " << status;
  }
}

TEST(GateTest, DeepAndLargeFilesAreRefused) {
  EXPECT_FALSE(ParseGate(std::string(500, '['), "gate").ok());
  EXPECT_FALSE(ParseGate(std::string(70000, ' '), "gate").ok());
  EXPECT_FALSE(ParseGate("a: &x {b: 1}\nc: *x", "gate").ok());
}

}  // namespace
}  // namespace kvbridge::evidence
