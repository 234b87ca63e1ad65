#include "core/artifact/manifest.h"

#include <functional>

#include <gtest/gtest.h>

#include "core/artifact/spec_json.h"
#include "core/artifact/weights.h"
#include "tests/core/artifact/synthetic_mapper.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

Manifest Example() {
  Provenance provenance{
      .lambda = 0.01,
      .lambda_convention = LambdaConvention::kGramOverRows,
      .calibration = {{"corpus", "kjv"}, {"rows", 1000}},
      .evidence =
          Evidence{.verdict = Verdict::kPass, .kl_nats = 0.18, .provenance = "20 passages"}};
  Manifest manifest = ManifestOf(*SyntheticMapper({.key_norm = mapper::KeyNorm::Kind::kKNorm}),
                                 std::move(provenance));
  FileEntry& file = manifest.files[std::string(kWeightsFile)];
  file.bytes = 5;
  file.tree.chunks = {crypto::Sha256Of({}).value()};
  file.tree.root = crypto::TreeRoot(file.tree.chunks).value();
  return manifest;
}

TEST(ManifestTest, EvidenceByTailAndItsDetailsAreReadBack) {
  Manifest manifest = Example();
  Evidence& evidence = *manifest.provenance.evidence;
  EXPECT_FALSE(ManifestToJson(manifest)["evidence"].contains("tails"));
  evidence.tails = {{1, 0.2, 0.7}, {17, 0.1, std::nullopt}};
  evidence.details = {{"run_sha256", "ab"}};
  Json json = ManifestToJson(manifest);
  const Manifest read = ManifestFromJson(json).value();
  EXPECT_EQ(read.provenance.evidence->tails, evidence.tails);
  EXPECT_EQ(read.provenance.evidence->details, evidence.details);
  json["evidence"]["tails"][1]["native_tail"] = 1;
  EXPECT_EQ(ManifestFromJson(json).status().code(), absl::StatusCode::kInvalidArgument);
  json["evidence"]["tails"] = Json::object();
  EXPECT_EQ(ManifestFromJson(json).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ManifestTest, IsReadBackByteForByte) {
  const Json json = ManifestToJson(Example());
  const Manifest read = ManifestFromJson(json).value();
  EXPECT_EQ(base::CanonicalJson(ManifestToJson(read)), base::CanonicalJson(json));
  EXPECT_EQ(read.source, Example().source);
  EXPECT_EQ(read.provenance.evidence->kl_nats, 0.18);
  EXPECT_EQ(read.provenance.evidence->gap_recovered, std::nullopt);
  EXPECT_EQ(read.provenance.verdict(), Verdict::kPass);
}

TEST(ManifestTest, ANetworkIsListedByItsWidthsAndALinearMapNotAtAll) {
  EXPECT_FALSE(ManifestToJson(Example())["layers"][0]["key"].contains("hidden"));
  const auto mapper = SyntheticMapper({.support = mapper::Support::kMlp, .hidden = {6, 3}});
  Manifest manifest = Example();
  manifest.layers = ManifestOf(*mapper, {}).layers;
  const Json json = ManifestToJson(manifest);
  EXPECT_EQ(json["layers"][2]["value"]["support"], "mlp");
  EXPECT_EQ(json["layers"][2]["value"]["hidden"], Json({6, 3}));
  EXPECT_EQ(base::CanonicalJson(ManifestToJson(ManifestFromJson(json).value())),
            base::CanonicalJson(json));
}

TEST(ManifestTest, WithoutEvidenceTheVerdictIsUnproven) {
  Json json = ManifestToJson(Example());
  json["evidence"] = nullptr;
  EXPECT_EQ(ManifestFromJson(json)->provenance.verdict(), Verdict::kUnproven);
}

struct BadCase {
  const char* name;
  std::function<void(Json&)> damage;
  absl::StatusCode code;
  const char* message;
};

TEST(ManifestTest, EveryDamageIsNamed) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const BadCase cases[] = {
      {"unknown key", [](Json& j) { j["surprise"] = 1; }, invalid, "manifest.surprise"},
      {"schema true", [](Json& j) { j["schema_version"] = true; }, invalid, "schema_version"},
      {"schema 2", [](Json& j) { j["schema_version"] = 2; }, invalid, "schema_version"},
      {"no rope", [](Json& j) { j["source"].erase("rope"); }, invalid, "manifest.source.rope"},
      {"strip_rope string", [](Json& j) { j["strip_rope"] = "false"; }, invalid, "strip_rope"},
      {"too few layers", [](Json& j) { j["layers"].erase(0); }, invalid, "manifest.layers"},
      {"empty list", [](Json& j) { j["layers"][0]["key"]["sources"] = Json::array(); }, invalid,
       "layers[0].key.sources"},
      {"layer twice",
       [](Json& j) {
         j["layers"][0]["value"]["sources"] = {1, 1};
       },
       invalid, "layers[0].value.sources"},
      {"cross twice",
       [](Json& j) {
         j["layers"][0]["value"]["cross_sources"] = {1, 1};
       },
       invalid, "layers[0].value.cross_sources"},
      {"cross empty", [](Json& j) { j["layers"][0]["key"]["cross_sources"] = Json::array(); },
       invalid, "layers[0].key.cross_sources"},
      {"float index", [](Json& j) { j["layers"][0]["key"]["sources"] = {0.0}; }, invalid,
       "layers[0].key.sources"},
      {"support", [](Json& j) { j["layers"][1]["key"]["support"] = "cnn"; }, invalid,
       "layers[1].key.support"},
      {"mlp without widths", [](Json& j) { j["layers"][1]["key"]["support"] = "mlp"; }, invalid,
       "layers[1].key.hidden"},
      {"no widths", [](Json& j) { j["layers"][1]["key"]["hidden"] = Json::array(); }, invalid,
       "layers[1].key.hidden: expected 1 to 8 widths, got 0"},
      {"nine hidden layers",
       [](Json& j) { j["layers"][1]["key"]["hidden"] = std::vector<int>(9, 1); }, invalid,
       "layers[1].key.hidden: expected 1 to 8 widths, got 9"},
      {"width 0", [](Json& j) { j["layers"][0]["key"]["hidden"] = {0}; }, invalid,
       "layers[0].key.hidden"},
      {"width too large", [](Json& j) { j["layers"][0]["key"]["hidden"] = {65537}; }, invalid,
       "layers[0].key.hidden"},
      {"negative lambda", [](Json& j) { j["fit"]["lambda"] = -1; }, invalid, "fit.lambda"},
      {"convention", [](Json& j) { j["fit"]["lambda_convention"] = "raw"; }, invalid,
       "lambda_convention"},
      {"kind", [](Json& j) { j["key_norm"]["kind"] = "rms"; }, invalid, "key_norm.kind"},
      {"evidence missing", [](Json& j) { j.erase("evidence"); }, invalid, "manifest.evidence"},
      {"verdict", [](Json& j) { j["evidence"]["verdict"] = "pass"; }, invalid, "verdict"},
      {"upper-case digest",
       [](Json& j) { j["files"]["mapper.safetensors"]["chunks"][0] = std::string(64, 'A'); },
       invalid, "chunks"},
      {"root of other chunks",
       [](Json& j) { j["files"]["mapper.safetensors"]["sha256"] = std::string(64, 'a'); },
       absl::StatusCode::kDataLoss, "sha256"},
      {"chunk count", [](Json& j) { j["files"]["mapper.safetensors"]["bytes"] = 9'000'000; },
       invalid, "chunks"},
      {"other file", [](Json& j) { j["files"]["../../x"] = j["files"]["mapper.safetensors"]; },
       invalid, "manifest.files"},
      {"layers a billion", [](Json& j) { j["target"]["geometry"]["layers"] = 1'000'000'000; },
       invalid, "target.geometry.layers"},
      {"odd frequencies", [](Json& j) { j["source"]["rope"]["params"]["inv_freq"] = {1.0}; },
       invalid, "inv_freq"},
  };
  for (const BadCase& bad : cases) {
    Json json = ManifestToJson(Example());
    bad.damage(json);
    const absl::Status status = ManifestFromJson(json).status();
    EXPECT_EQ(status.code(), bad.code) << bad.name << ": " << status;
    EXPECT_NE(status.message().find(bad.message), absl::string_view::npos)
        << bad.name << ": " << status;
  }
}

TEST(SpecJsonTest, DefaultsMayBeLeftOutAndLongIntegersMayBeStrings) {
  const auto geometry = GeometryFromJson(
      {{"layers", 2}, {"kv_heads", 1}, {"head_dim", 4}, {"element_type", "ELEMENT_TYPE_F8_E4M3"}},
      "g");
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  EXPECT_EQ(geometry->dtype, tensor::DType::kF8E4M3);
  EXPECT_EQ(geometry->tp_degree, 1);
  const auto rope = RopeFromJson({{"max_position", "40960"}}, "r");
  ASSERT_TRUE(rope.ok()) << rope.status();
  EXPECT_EQ(rope->max_position, 40960);
  EXPECT_EQ(rope->params.attention_factor, 1.0);
}

TEST(SpecJsonTest, OverridesAndLayerKindsSurvive) {
  model::ModelSpec spec = SyntheticSpec("m", 2, 0.1);
  spec.geometry.attention = {model::AttentionKind::kFull, model::AttentionKind::kSliding};
  spec.geometry.head_order = {1, 0};
  spec.rope.layer_overrides[1] = {.inv_freq = {0.5},
                                  .attention_factor = 1.25,
                                  .rotary_dim = 2,
                                  .pairing = model::Pairing::kInterleaved};
  const auto read = SpecFromJson(SpecToJson(spec), "spec");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, spec);
}

TEST(SpecJsonTest, WhatTheProtoRefusesIsRefused) {
  const Json good = SpecToJson(SyntheticSpec("m", 2, 0.1));
  const std::pair<const char*, Json> patches[] = {
      {"/geometry/element_type", "ELEMENT_TYPE_UNSPECIFIED"},
      {"/geometry/layers", 0},
      {"/geometry/layers", 2.0},
      {"/geometry/attention", {"ATTENTION_KIND_FULL"}},
      {"/rope/params/pairing", "PAIRING_UNSPECIFIED"},
      {"/rope/params/attention_factor", -1.0},
      {"/rope/layer_overrides", {{"01", Json::object()}}},
      {"/rope/max_position", "12x"},
      {"/identity/model_id", 5},
      {"/identity/name", "x"},
  };
  for (const auto& [pointer, value] : patches) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    EXPECT_EQ(SpecFromJson(bad, "spec").status().code(), absl::StatusCode::kInvalidArgument)
        << pointer << " = " << value;
  }
}

TEST(QualityTest, IsThatOfTheLongestMeasuredTailNotAbove) {
  Provenance provenance;
  EXPECT_FALSE(QualityAt(provenance, 1).kl_nats.has_value());
  provenance.evidence = Evidence{.kl_nats = 0.2, .gap_recovered = 0.7};
  EXPECT_EQ(QualityAt(provenance, 100).kl_nats, 0.2);
  provenance.evidence->tails = {{.native_tail = 17, .kl_nats = 0.14, .gap_recovered = 0.8},
                                {.native_tail = 65, .kl_nats = 0.09}};
  EXPECT_EQ(QualityAt(provenance, 16).gap_recovered, 0.7);
  EXPECT_EQ(QualityAt(provenance, 17).gap_recovered, 0.8);
  EXPECT_EQ(QualityAt(provenance, 1000).kl_nats, 0.09);
  EXPECT_FALSE(QualityAt(provenance, 1000).gap_recovered.has_value());
}

}  // namespace
}  // namespace kvbridge::artifact
