#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "client/cli/report_page.h"
#include "client/cli/report_svg.h"
#include "core/evidence/record.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/evidence/synthetic_run.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::cli {
namespace {

using base::Json;

// A calibration as docs/fit.md describes it, of 3 target layers with 2 heads and 2 source layers.
Json Calibration() {
  const Json fit = {{"support", "full"},  {"sources", {0}},
                    {"lambda", 1e-4},     {"r2_in_sample", 0.8},
                    {"r2_held_out", 0.7}, {"heads", {{"r2_held_out", {0.65, 0.75}}}}};
  const Json score = {{"r2_in_sample", 0.9}, {"r2_held_out", 0.6}};
  const Json probe = {{0.5, 0.4}, {0.45, 0.5}, {0.2, nullptr}};
  return {{"schema", "kvbridge-fit/1"},
          {"rows", {{"fit", 100}, {"held_out", 20}}},
          {"settings", {{"order", "forward"}}},
          {"choice", {{"reason", "the second source layer helped"}}},
          {"probe_scores", {{"key", probe}, {"value", probe}}},
          {"sweep",
           {{{"support", "full"}, {"k", 1}, {"key", score}, {"value", score}},
            {{"support", "full"}, {"k", 2}, {"key", score}, {"value", score}}}},
          {"layers",
           {{{"key", fit}, {"value", fit}},
            {{"key", fit}, {"value", fit}},
            {{"key", fit}, {"value", fit}}}}};
}

artifact::Artifact Example(const evidence::SyntheticRun& synthetic = {}) {
  evidence::EvidenceRun run = synthetic.Make({"code", "general"});
  evidence::EvidenceRun shorter = synthetic.Make({"code", "general"});
  for (evidence::SequenceScores& sequence : shorter.sequences) {
    sequence.prefix_tokens = 64;
    run.sequences.push_back(sequence);
  }
  run.protocol = {{"scored_tokens", 128}};
  const evidence::Gate gate =
      evidence::ParseGate(test::ReadTestFile("configs/gates/default.yaml"), "gate.yaml").value();
  const evidence::RunSummary summary = evidence::Summarize(run);
  artifact::Artifact artifact;
  auto mapper = artifact::SyntheticMapper();
  mapper->digest = std::string(64, 'c');
  artifact.mapper = mapper;
  artifact.provenance.calibration = Calibration();
  artifact.provenance.evidence =
      evidence::MakeEvidence(gate, run, summary, evidence::Judge(gate, run, summary));
  return artifact;
}

evidence::SyntheticRun WithTails() {
  evidence::SyntheticRun synthetic;
  synthetic.kl["mapped.tail17"] = 0.05;
  synthetic.kl["none.tail17"] = 0.3;
  synthetic.kl["mapped.hops3"] = 0.2;
  return synthetic;
}

std::string PageOf(const artifact::Artifact& artifact, const std::string& name = "k4") {
  return ReportPage({CollectReport(name, artifact)});
}

// The first fault of the nesting of tags, or nothing. Attributes hold no ">" after escaping.
std::string NestingFault(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1)) {
    const size_t end = page.find('>', at);
    if (end == std::string::npos) return "a tag that does not end";
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '!' || name == "meta" || name == "link" || absl::EndsWith(tag, "/")) continue;
    if (tag[0] != '/') {
      open.push_back(name);
      continue;
    }
    if (open.empty() || tag.substr(1) != open.back()) return tag;
    open.pop_back();
  }
  return open.empty() ? "" : open.back();
}

TEST(ReportTest, EveryFigureIsThere) {
  const std::string page = PageOf(Example(WithTails()));
  for (const char* part : {"test/small <span class=\"to\">→</span> test/large",
                           "PASS",
                           "KL to its own cache",
                           "gap recovered",
                           "general, 40 sequences",
                           "code, 40 sequences",
                           "random map",
                           "KL against native tail",
                           "Gap recovered against native tail",
                           "KL saved against no prefix, by native tail",
                           "KL against length of the prefix",
                           "Attention outputs, cosine with own",
                           "All figures: general",
                           "mapped, tail 17",
                           "3 handoffs",
                           "Keys: R² by source layers",
                           "Values: R² by source layers",
                           "in-sample",
                           "Keys: R² by layer",
                           "Which source layers feed which",
                           "By head",
                           "Worst layers",
                           "Size and speed",
                           "Provenance",
                           "Choice: the second source layer helped.",
                           "gate_sha256"}) {
    EXPECT_TRUE(absl::StrContains(page, part)) << part;
  }
}

TEST(ReportTest, IsWellFormedAndLoadsNothing) {
  const std::string page = PageOf(Example(WithTails()));
  EXPECT_EQ(NestingFault(page), "");
  for (const char* never : {"<script", "http:", "https:", "src=", "@import", "url("}) {
    EXPECT_FALSE(absl::StrContains(page, never)) << never;
  }
  EXPECT_FALSE(absl::StrContains(page, ">nan")) << "a number that is none";
  EXPECT_LT(page.size(), 300u << 10);
}

TEST(ReportTest, TheSameArtifactGivesTheSamePage) {
  EXPECT_EQ(PageOf(Example()), PageOf(Example()));
}

TEST(ReportTest, AnArtifactWithoutEvidenceSaysSo) {
  artifact::Artifact artifact = Example();
  artifact.provenance.evidence.reset();
  artifact.provenance.calibration = Json::object();
  const std::string page = PageOf(artifact);
  EXPECT_TRUE(absl::StrContains(page, "nothing says what this artifact is worth"));
  EXPECT_TRUE(absl::StrContains(page, "UNPROVEN"));
  EXPECT_TRUE(absl::StrContains(page, "Which source layers feed which"));
  EXPECT_FALSE(absl::StrContains(page, "<h3>Evidence"));
  EXPECT_EQ(NestingFault(page), "");
}

TEST(ReportTest, ABrokenGateIsNamed) {
  evidence::SyntheticRun bad;
  bad.kl["mapped"] = 0.7;
  bad.kl.erase("random");
  const std::string page = PageOf(Example(bad));
  EXPECT_TRUE(absl::StrContains(page, "✕</b> FAIL"));
  EXPECT_TRUE(absl::StrContains(page, "the control &quot;random&quot; is missing"));
  EXPECT_TRUE(absl::StrContains(page, "broken\">✕</b>"));
}

TEST(ReportTest, HostileTextIsEscapedEverywhere) {
  const std::string hostile = "<script>alert('1')</script>\"&\x01\xff";
  artifact::Artifact artifact = Example();
  auto mapper = std::make_shared<mapper::Mapper>(*artifact.mapper);
  mapper->source.identity.model_id = mapper->target.identity.revision = hostile;
  artifact.mapper = mapper;
  Json& calibration = artifact.provenance.calibration;
  calibration["choice"]["reason"] = calibration["moments"][hostile] = hostile;
  calibration["sweep"][0]["support"] = hostile;
  Json& details = artifact.provenance.evidence->details;
  details["gate"] = details["protocol"][hostile] = hostile;
  details["domains"][hostile] = details["domains"]["code"];
  details["domains"]["code"]["variants"][hostile] = details["domains"]["code"]["variants"]["own"];
  details["checks"][0]["rule"] = details["checks"][0]["why"] = hostile;
  details["checks"][0]["outcome"] = hostile;
  const std::string page = PageOf(artifact, hostile);
  EXPECT_FALSE(absl::StrContains(page, "<script"));
  EXPECT_FALSE(absl::StrContains(page, "alert('"));
  EXPECT_TRUE(absl::StrContains(page, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;"));
  EXPECT_EQ(NestingFault(page), "");
  EXPECT_EQ(page.find('\x01'), std::string::npos);
  EXPECT_EQ(page.find('\xff'), std::string::npos);
}

TEST(ReportTest, RecordsOfAnotherShapeAreLeftOut) {
  for (const Json& odd : {Json(3), Json("x"), Json(nullptr), Json::array({1, "a", nullptr}),
                          Json{{"key", Json::array({Json::array({"x"}), 3})}}}) {
    artifact::Artifact artifact = Example();
    for (auto& member : artifact.provenance.calibration.items()) member.value() = odd;
    for (auto& member : artifact.provenance.evidence->details.items()) member.value() = odd;
    EXPECT_EQ(NestingFault(PageOf(artifact)), "") << odd;
  }
}

TEST(ReportTest, SeveralArtifactsAreCompared) {
  const std::string page = ReportPage({CollectReport("first", Example(WithTails())),
                                       CollectReport("second", Example(WithTails()))});
  EXPECT_TRUE(absl::StrContains(page, "2 artifacts compared"));
  EXPECT_TRUE(absl::StrContains(page, "<th>first</th><th>second</th>"));
  EXPECT_TRUE(absl::StrContains(page, "KL · general"));
  EXPECT_TRUE(absl::StrContains(page, "KL against native tail, all texts"));
  EXPECT_EQ(NestingFault(page), "");
}

// Qwen3 14B to 32B: 40 source layers, 64 target layers of 8 heads.
TEST(ReportTest, TwoLargeModelsStayFarBelowTwoMegabytes) {
  ArtifactReport report{.name = "large", .source_layers = 40};
  for (int layer = 0; layer < 64; ++layer) {
    report.key_probe.emplace_back(40, 0.5 + layer * 0.001);
    LayerFit fit{.support = "full", .r2 = {0.8, 0.7 - layer * 0.001}};
    fit.heads.assign(8, 0.6 + layer * 0.001);
    for (int i = 0; i < 8; ++i) fit.sources.push_back({(layer / 2 + i) % 40});
    report.keys.push_back(fit);
    report.values.push_back(fit);
  }
  report.value_probe = report.key_probe;
  const std::string page = ReportPage({report});
  EXPECT_EQ(NestingFault(page), "");
  EXPECT_LT(page.size(), 1000u << 10);
}

TEST(ReportTest, LayersOfTheOtherComponentHaveColumnsOfTheirOwn) {
  LayerFit fit{.support = "full", .r2 = {0.8, 0.7}};
  fit.sources = {{0, kv::Component::kKey}, {1, kv::Component::kValue}};
  const std::string page =
      ReportPage({{.name = "both", .source_layers = 2, .keys = {fit}, .values = {fit}}});
  for (const char* column : {">0<", ">1<", ">V0<", ">V1<", ">K0<", ">K1<"}) {
    EXPECT_TRUE(absl::StrContains(page, column)) << column;
  }
  EXPECT_TRUE(absl::StrContains(page, "<td>0, V1</td>"));  // K of layer 0
  EXPECT_TRUE(absl::StrContains(page, "<td>K0, 1</td>"));  // V of layer 0
}

}  // namespace
}  // namespace kvbridge::cli
