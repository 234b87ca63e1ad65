#include "core/model/hf_config.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/strict_json.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::model {
namespace {

using base::Json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// head_dim 16, two layers; every test changes what it is about.
Json Config() {
  return Json::parse(R"({
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "head_dim": 16, "max_position_embeddings": 131072,
    "rope_theta": 10000.0})");
}

Json With(Json config, absl::string_view members) {
  config.update(Json::parse(members.begin(), members.end()));
  return config;
}
Json With(absl::string_view members) { return With(Config(), members); }
Json Without(Json config, const char* key) {
  config.erase(key);
  return config;
}

ModelSpec Read(const Json& config, const HfConfigOptions& options = {}) {
  auto spec = SpecFromHfConfig(config.dump(), options);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *std::move(spec) : ModelSpec{};
}

void ExpectRefused(const Json& config, absl::StatusCode code, const std::string& field,
                   const std::string& what = "", const HfConfigOptions& options = {}) {
  const auto spec = SpecFromHfConfig(config.dump(), options);
  EXPECT_EQ(spec.status().code(), code) << config.dump() << "\n" << spec.status();
  EXPECT_THAT(std::string(spec.status().message()), AllOf(HasSubstr(field), HasSubstr(what)));
}
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Expected values come from transformers 5.24's own functions, which compute in FP32.
void ExpectRope(const RopeParams& params, const std::vector<double>& inv_freq, double factor) {
  ASSERT_EQ(params.inv_freq.size(), inv_freq.size());
  EXPECT_EQ(params.rotary_dim, 2 * static_cast<int32_t>(inv_freq.size()));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    EXPECT_NEAR(params.inv_freq[i], inv_freq[i], 1e-6 * inv_freq[i]) << "pair " << i;
  }
  EXPECT_NEAR(params.attention_factor, factor, 1e-14);
}

const std::vector<double> kYarn4 = {1.0,
                                    0.177827939,
                                    0.0316227786,
                                    0.00421755994,
                                    0.000500000024,
                                    4.44569851e-05,
                                    7.90569356e-06,
                                    1.40585337e-06};

// --- Geometry -----------------------------------------------------------------------------------

TEST(HfConfigTest, ReadsFamilyAndGeometryAndLeavesIdentityToTheCaller) {
  const ModelSpec spec = Read(With(R"({"torch_dtype": "float16"})"));
  EXPECT_EQ(spec.identity.family, "llama");
  EXPECT_EQ(spec.identity.revision, "");
  EXPECT_EQ(spec.identity.tokenizer_sha256, "");
  EXPECT_EQ(spec.geometry.layers, 2);
  EXPECT_EQ(spec.geometry.kv_heads, 2);
  EXPECT_EQ(spec.geometry.head_dim, 16);
  EXPECT_EQ(spec.geometry.dtype, tensor::DType::kF16);
  EXPECT_EQ(spec.rope.max_position, 131072);
}

TEST(HfConfigTest, NullHeadDimIsDerivedFromTheHiddenSize) {
  EXPECT_EQ(Read(With(R"({"head_dim": null})")).geometry.head_dim, 16);
  EXPECT_EQ(Read(Without(Config(), "head_dim")).geometry.head_dim, 16);
  EXPECT_EQ(Read(With(R"({"model_type": "qwen3", "head_dim": null})")).geometry.head_dim, 16);
}

TEST(HfConfigTest, AbsentHeadDimTakesTheModelTypesOwnDefault) {
  EXPECT_EQ(Read(Without(With(R"({"model_type": "qwen3"})"), "head_dim")).geometry.head_dim, 128);
  EXPECT_EQ(Read(Without(With(R"({"model_type": "gemma"})"), "head_dim")).geometry.head_dim, 256);
}

TEST(HfConfigTest, HiddenSizeThatHeadsDoNotDivideIsRefused) {
  ExpectRefused(With(R"({"head_dim": null, "hidden_size": 65})"), kInvalid,
                "config.json.hidden_size", "got 65");
}

TEST(HfConfigTest, AbsentKeyValueHeadsMeanOnePerAttentionHead) {
  EXPECT_EQ(Read(Without(Config(), "num_key_value_heads")).geometry.kv_heads, 4);
  ExpectRefused(With(R"({"num_key_value_heads": 3})"), kInvalid, "num_key_value_heads", "got 3");
}

TEST(HfConfigTest, GptJNamesAndRotaryDimAreRead) {
  const ModelSpec spec = Read(Json::parse(R"({"model_type": "gptj", "n_embd": 64, "n_head": 4,
      "n_layer": 3, "n_positions": 2048, "rotary_dim": 8})"));
  EXPECT_EQ(spec.geometry.layers, 3);
  EXPECT_EQ(spec.geometry.kv_heads, 4);
  EXPECT_EQ(spec.geometry.head_dim, 16);
  EXPECT_EQ(spec.rope.max_position, 2048);
  EXPECT_EQ(spec.rope.params.rotary_dim, 8);
  EXPECT_EQ(spec.rope.params.pairing, Pairing::kInterleaved);
}

TEST(HfConfigTest, TextModelInsideAWrapperIsRead) {
  Json wrapper = Json::parse(R"({"model_type": "mistral3"})");
  wrapper["text_config"] = With(R"({"model_type": "ministral3"})");
  EXPECT_EQ(Read(wrapper).identity.family, "ministral3");
  wrapper["text_config"]["head_dim"] = "x";
  ExpectRefused(wrapper, kInvalid, "config.json.text_config.head_dim");
}

// --- Pairing ------------------------------------------------------------------------------------

TEST(HfConfigTest, PairingFollowsTheModelType) {
  for (const char* half :
       {"llama", "mixtral", "qwen2", "qwen3", "phi3", "stablelm", "gemma", "glm4_moe"}) {
    Json config = Config();
    config["model_type"] = half;
    EXPECT_EQ(Read(config).rope.params.pairing, Pairing::kHalf) << half;
  }
  for (const char* interleaved : {"glm", "glm4", "cohere", "ernie4_5", "helium"}) {
    Json config = Config();
    config["model_type"] = interleaved;
    EXPECT_EQ(Read(config).rope.params.pairing, Pairing::kInterleaved) << interleaved;
  }
}

TEST(HfConfigTest, UnknownModelTypeNeedsAStatedPairing) {
  const Json config = With(R"({"model_type": "novel"})");
  ExpectRefused(config, kInvalid, "config.json.model_type", "pairing");
  EXPECT_EQ(Read(config, {.pairing = Pairing::kInterleaved}).rope.params.pairing,
            Pairing::kInterleaved);
  EXPECT_EQ(Read(Config(), {.pairing = Pairing::kInterleaved}).rope.params.pairing,
            Pairing::kInterleaved)
      << "an explicit pairing overrides the table";
}

// --- Rotation types -----------------------------------------------------------------------------

TEST(HfConfigTest, DefaultRotation) {
  const RopeParams params = Read(Config()).rope.params;
  EXPECT_EQ(params.rotary_dim, 16);
  EXPECT_NEAR(params.inv_freq[4], 0.01, 1e-15);
  EXPECT_EQ(params.attention_factor, 1.0);
}

TEST(HfConfigTest, LinearRotationInEitherSpelling) {
  const std::vector<double> expected = {0.25,           0.079056941,   0.0250000004,
                                        0.00790569466,  0.00249999994, 0.000790569466,
                                        0.000250000012, 7.90569466e-05};
  const ModelSpec spec = Read(With(R"({"rope_scaling": {"type": "linear", "factor": 4}})"));
  ExpectRope(spec.rope.params, expected, 1);
  EXPECT_EQ(spec.rope.max_position, 4 * 131072);
  ExpectRope(Read(Without(With(R"({"rope_parameters":
      {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}})"),
                          "rope_theta"))
                 .rope.params,
             expected, 1);
}

TEST(HfConfigTest, Llama3Rotation) {
  ExpectRope(Read(With(R"({"rope_theta": 500000, "rope_scaling": {"rope_type": "llama3",
      "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 8192}})"))
                 .rope.params,
             {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000429556705, 8.57025589e-06,
              1.66196742e-06, 3.22293289e-07},
             1);
  ExpectRefused(With(R"({"rope_scaling": {"rope_type": "llama3", "factor": 32,
      "low_freq_factor": 1, "original_max_position_embeddings": 8192}})"),
                kInvalid, "config.json.rope_scaling.high_freq_factor", "got nothing");
}

Json Yarn(const char* more) {
  return With(With(R"({"rope_theta": 1e6, "max_position_embeddings": 40960, "rope_scaling":
      {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})"),
              more);
}

TEST(HfConfigTest, YarnRotation) {
  const ModelSpec spec = Read(Yarn("{}"));
  ExpectRope(spec.rope.params, kYarn4, 1.138629436111989);
  EXPECT_EQ(spec.rope.max_position, 131072) << "factor times the original, not the stale 40960";
}

TEST(HfConfigTest, YarnWithExplicitAttentionFactor) {
  Json config = Yarn("{}");
  config["rope_scaling"]["attention_factor"] = 1.25;
  ExpectRope(Read(config).rope.params, kYarn4, 1.25);
}

TEST(HfConfigTest, YarnFactorIsTheRatioOfContextsWhenAbsentOrNull) {
  Json config = Yarn(R"({"max_position_embeddings": 131072})");
  config["rope_scaling"]["factor"] = nullptr;
  ExpectRope(Read(config).rope.params, kYarn4, 1.138629436111989);
  config["rope_scaling"].erase("factor");
  ExpectRope(Read(config).rope.params, kYarn4, 1.138629436111989);
}

TEST(HfConfigTest, YarnMscalesAndBetas) {
  const Json config = With(R"({"rope_scaling": {"rope_type": "yarn", "factor": 40,
      "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.707,
      "beta_fast": 16, "beta_slow": 2}})");
  ExpectRope(Read(config).rope.params,
             {1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00674999924, 0.00110679714,
              2.49999994e-05, 7.90569447e-06},
             1.0857263992561355);
}

TEST(HfConfigTest, YarnEqualMscalesLeaveTheSizeAlone) {
  const Json config = With(R"({"rope_scaling": {"rope_type": "yarn", "factor": 40,
      "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 0.707}})");
  ExpectRope(Read(config).rope.params,
             {1.0, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176,
              2.49999994e-05, 7.90569447e-06},
             1.0);
}

TEST(HfConfigTest, YarnWithoutTruncation) {
  const Json config = With(R"({"rope_theta": 150000, "rope_scaling": {"rope_type": "yarn",
      "factor": 32, "original_max_position_embeddings": 4096, "truncate": false}})");
  ExpectRope(Read(config).rope.params,
             {1.0, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05,
              4.09997847e-06, 9.24208962e-07},
             1.3465735902799727);
}

TEST(HfConfigTest, YarnOverAPartOfTheHead) {
  const Json config = With(R"({"partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "yarn",
      "factor": 4, "original_max_position_embeddings": 2048}})");
  ExpectRope(Read(config).rope.params, {1.0, 0.100000001, 0.00624999963, 0.000250000012},
             1.138629436111989);
}

Json LongRope(const char* more) {
  return With(With(R"({"model_type": "phi3", "sliding_window": null,
      "original_max_position_embeddings": 4096, "rope_scaling": {"type": "longrope",
      "short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
      "long_factor": [1, 2, 3, 5, 8, 13, 21, 34]}})"),
              more);
}

TEST(HfConfigTest, LongRopeUsesTheListThatTheCallerStates) {
  ExpectRope(Read(LongRope("{}"), {.longrope_list = LongRopeList::kShort}).rope.params,
             {1.0, 0.287479758, 0.0833333358, 0.0243252143, 0.00714285718, 0.00210818532,
              0.000624999986, 0.000186016332},
             1.1902380714238083);
  ExpectRope(Read(LongRope("{}"), {.longrope_list = LongRopeList::kLong}).rope.params,
             {1.0, 0.158113882, 0.0333333351, 0.00632455572, 0.00124999997, 0.000243252129,
              4.76190471e-05, 9.3008166e-06},
             1.1902380714238083);
}

TEST(HfConfigTest, LongRopeWithoutAStatedListIsRefused) {
  ExpectRefused(LongRope("{}"), kInvalid, "config.json.rope_scaling", "longrope_list");
}

TEST(HfConfigTest, LongRopeListOfTheWrongLengthIsRefused) {
  Json config = LongRope("{}");
  config["rope_scaling"]["long_factor"].push_back(55);
  ExpectRefused(config, kInvalid, "longrope factor list", "got 9",
                {.longrope_list = LongRopeList::kLong});
  config["rope_scaling"]["long_factor"][3] = "x";
  ExpectRefused(config, kInvalid, "config.json.rope_scaling.long_factor[3]", "got string",
                {.longrope_list = LongRopeList::kLong});
}

TEST(HfConfigTest, LongRopeExplicitFactorsWin) {
  Json config = LongRope("{}");
  config["rope_scaling"]["factor"] = 4;
  const HfConfigOptions is_long{.longrope_list = LongRopeList::kLong};
  EXPECT_NEAR(Read(config, is_long).rope.params.attention_factor, 1.0801234497346435, 1e-14);
  config["rope_scaling"]["attention_factor"] = 1.3;
  EXPECT_EQ(Read(config, is_long).rope.params.attention_factor, 1.3);
}

TEST(HfConfigTest, OlderNameOfLongRopeIsKnown) {
  Json config = LongRope("{}");
  config["rope_scaling"]["type"] = "su";
  EXPECT_TRUE(SpecFromHfConfig(config.dump(), {.longrope_list = LongRopeList::kShort}).ok());
  config["rope_scaling"]["type"] = "yarn";  // Phi-3's first releases
  ExpectRefused(config, kInvalid, "config.json.rope_scaling.short_factor", "longrope only");
}

TEST(HfConfigTest, DynamicRotationIsUnimplementedByName) {
  ExpectRefused(With(R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2}})"), kUnimplemented,
                "rope_scaling.rope_type", "got dynamic");
  ExpectRefused(With(R"({"rope_scaling": {"type": "dynamic", "factor": 2}})"), kUnimplemented,
                "rope_scaling.type", "got dynamic");
  ExpectRefused(With(R"({"rope_scaling": {"rope_type": "spiral"}})"), kUnimplemented,
                "rope_scaling.rope_type", "got spiral");
}

TEST(HfConfigTest, RotaryMembersOfUnknownEffectAreUnimplementedByName) {
  ExpectRefused(With(R"({"rope_scaling": {"type": "default", "mrope_section": [1, 2]}})"),
                kUnimplemented, "config.json.rope_scaling.mrope_section");
  ExpectRefused(LongRope(R"({"rope_scaling": {"type": "longrope", "long_mscale": 1.2}})"),
                kUnimplemented, "config.json.rope_scaling.long_mscale");
}

// --- Two spellings ------------------------------------------------------------------------------

TEST(HfConfigTest, RotaryParametersPerLayerTypeAreRead) {
  const ModelSpec spec = Read(With(R"({"rope_theta": null, "rope_parameters": {
      "full_attention": {"rope_type": "default", "rope_theta": 1e6},
      "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})"));
  EXPECT_NEAR(spec.rope.params.inv_freq[4], 1e-3, 1e-15);
  ExpectRefused(With(R"({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}})"),
                kInvalid, "config.json.rope_parameters.full_attention");
  ExpectRefused(With(R"({"rope_parameters": {"full_attention": null,
      "sliding_attention": {"rope_theta": 1e4}}})"),
                kInvalid, "config.json.rope_parameters.full_attention");
}

TEST(HfConfigTest, DisagreeingSpellingsAreRefused) {
  ExpectRefused(With(R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})"),
                kInvalid, "config.json.rope_parameters.rope_theta", "config.json.rope_theta");
  ExpectRefused(With(R"({"rope_parameters": {"rope_type": "default"},
                         "rope_scaling": {"rope_type": "linear", "factor": 2}})"),
                kInvalid, "config.json.rope_scaling", "config.json.rope_parameters");
  ExpectRefused(
      With(R"({"rope_scaling": {"rope_type": "linear", "type": "default", "factor": 2}})"),
      kInvalid, "config.json.rope_scaling.type", "linear");
}

TEST(HfConfigTest, AbsentThetaTakesTheModelTypesDefaultOrIsRefused) {
  EXPECT_NEAR(Read(Without(Config(), "rope_theta")).rope.params.inv_freq[4], 0.01, 1e-15);
  ExpectRefused(Without(With(R"({"model_type": "persimmon"})"), "rope_theta"), kInvalid,
                "config.json.rope_theta", "got nothing");
  const auto novel =
      SpecFromHfConfig(Without(With(R"({"model_type": "novel"})"), "rope_theta").dump(),
                       {.pairing = Pairing::kHalf});
  EXPECT_EQ(novel.status().code(), kInvalid);
}

// --- Partial rotary -----------------------------------------------------------------------------

int32_t RotaryDim(const char* members) { return Read(With(members)).rope.params.rotary_dim; }

TEST(HfConfigTest, PartialRotaryFactorIsAppliedOnceWhereverItIsStated) {
  EXPECT_EQ(RotaryDim(R"({"head_dim": 96, "partial_rotary_factor": 0.75})"), 72);
  EXPECT_EQ(RotaryDim(R"({"head_dim": 96, "partial_rotary_factor": 0.25})"), 24);
  EXPECT_EQ(RotaryDim(R"({"head_dim": 96, "rotary_dim": 24})"), 24);
  EXPECT_EQ(RotaryDim(R"({"head_dim": 96, "rotary_pct": 0.25})"), 24);
  EXPECT_EQ(RotaryDim(R"({"head_dim": 96, "partial_rotary_factor": 0.25, "rope_parameters":
      {"rope_type": "default", "partial_rotary_factor": 0.25}})"),
            24);
  EXPECT_EQ(RotaryDim(R"({"head_dim": 96, "partial_rotary_factor": 0.25, "rotary_dim": 24})"), 24);
}

TEST(HfConfigTest, FrequenciesOfAPartialRotationAreThoseOfTheRotaryDimension) {
  const RopeParams params = Read(With(R"({"head_dim": 8, "rotary_dim": 4})")).rope.params;
  EXPECT_THAT(params.inv_freq, ::testing::ElementsAre(1.0, ::testing::DoubleNear(0.01, 1e-15)));
}

TEST(HfConfigTest, DisagreeingRotaryDimAndFactorAreRefused) {
  ExpectRefused(With(R"({"head_dim": 96, "rotary_dim": 48, "partial_rotary_factor": 0.25})"),
                kInvalid, "config.json.partial_rotary_factor",
                "config.json.rotary_dim = 48, got 24");
  ExpectRefused(With(R"({"partial_rotary_factor": 0.5, "rope_parameters":
      {"rope_type": "default", "partial_rotary_factor": 0.25}})"),
                kInvalid, "config.json.rope_parameters.partial_rotary_factor", "got 4");
}

TEST(HfConfigTest, AbsentPartialFactorTakesTheModelTypesDefault) {
  EXPECT_EQ(RotaryDim(R"({"model_type": "stablelm"})"), 4);
  EXPECT_EQ(RotaryDim(R"({"model_type": "glm"})"), 8);
  EXPECT_EQ(RotaryDim(R"({"model_type": "gpt_neox"})"), 4);
  EXPECT_EQ(RotaryDim("{}"), 16);
}

TEST(HfConfigTest, RotaryDimensionsThatCannotBeAreRefused) {
  for (const char* share : {"0", "1.5", "-0.5"}) {
    ExpectRefused(With(std::string(R"({"partial_rotary_factor": )") + share + "}"), kInvalid,
                  "config.json.partial_rotary_factor");
  }
  ExpectRefused(With(R"({"head_dim": 10, "partial_rotary_factor": 0.5})"), kInvalid,
                "even rotary dimension", "got 5");
  ExpectRefused(With(R"({"rotary_dim": 32})"), kInvalid, "config.json.rotary_dim", "32");
}

// --- Caches that are not dense full attention ---------------------------------------------------

TEST(HfConfigTest, LayersThatAreNotFullAttentionAreUnimplementedByName) {
  ExpectRefused(With(R"({"layer_types": ["full_attention", "sliding_attention"]})"), kUnimplemented,
                "config.json.layer_types[1]", "sliding_attention");
  ExpectRefused(With(R"({"layer_types": ["linear_attention", "full_attention"]})"), kUnimplemented,
                "config.json.layer_types[0]", "linear_attention");
  ExpectRefused(With(R"({"layer_types": ["full_attention"]})"), kInvalid, "config.json.layer_types",
                "got 1");
}

TEST(HfConfigTest, OtherKindsOfCacheAreUnimplementedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"kv_lora_rank", "512"},
      {"q_lora_rank", "1536"},
      {"qk_rope_head_dim", "64"},
      {"mamba_d_state", "16"},
      {"layers_block_type", R"(["mamba"])"},
      {"num_kv_shared_layers", "10"},
      {"sliding_window_pattern", "6"},
      {"attention_chunk_size", "8192"},
      {"no_rope_layers", "[1, 0]"},
      {"alibi", "true"},
      {"multi_query", "true"},
  };
  for (const auto& [field, value] : cases) {
    ExpectRefused(With(std::string("{\"") + field + "\": " + value + "}"), kUnimplemented,
                  std::string("config.json.") + field);
    EXPECT_TRUE(SpecFromHfConfig(With(std::string("{\"") + field + "\": null}").dump()).ok());
  }
  EXPECT_TRUE(SpecFromHfConfig(With(R"({"num_kv_shared_layers": 0, "alibi": false})").dump()).ok());
}

TEST(HfConfigTest, SlidingWindowIsUnimplementedWhereItHidesAnything) {
  const auto mistral = [](const char* members) {
    return With(With(R"({"model_type": "mistral", "max_position_embeddings": 32768})"), members);
  };
  ExpectRefused(mistral(R"({"sliding_window": 4096})"), kUnimplemented,
                "config.json.sliding_window", "got 4096");
  ExpectRefused(mistral("{}"), kUnimplemented, "config.json.sliding_window", "default");
  EXPECT_TRUE(SpecFromHfConfig(mistral(R"({"sliding_window": null})").dump()).ok());
  EXPECT_TRUE(SpecFromHfConfig(mistral(R"({"sliding_window": 32768})").dump()).ok());
  ExpectRefused(mistral(R"({"sliding_window": 4096, "use_sliding_window": false})"), kUnimplemented,
                "config.json.sliding_window", "got 4096");
}

TEST(HfConfigTest, QwenWindowCountsOnlyWhenUsed) {
  const auto qwen = [](const char* use) {
    return With(With(R"({"model_type": "qwen2", "sliding_window": 4096})"), use);
  };
  EXPECT_TRUE(SpecFromHfConfig(qwen(R"({"use_sliding_window": false})").dump()).ok());
  EXPECT_TRUE(SpecFromHfConfig(qwen("{}").dump()).ok());
  ExpectRefused(qwen(R"({"use_sliding_window": true})"), kUnimplemented,
                "config.json.use_sliding_window");
}

// --- Hostile text -------------------------------------------------------------------------------

TEST(HfConfigTest, TextThatIsNotAStrictJsonObjectIsRefused) {
  const std::string sound = Config().dump();
  const std::string bad[] = {"",
                             "null",
                             "[]",
                             "7",
                             "{",
                             sound + "x",
                             "\xef\xbb\xbf" + sound,
                             R"({"model_type": "llama", "model_type": "qwen3"})",
                             R"({"model_type": "llama", "x": Infinity})",
                             R"({"x": NaN})",
                             R"({"x": 1e999})",
                             "{\"model_type\": \"\xff\"}",
                             std::string(100, '[') + std::string(100, ']')};
  for (const std::string& text : bad) {
    const auto spec = SpecFromHfConfig(text);
    EXPECT_EQ(spec.status().code(), kInvalid) << text;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr("config.json")) << text;
  }
}

TEST(HfConfigTest, EveryRequiredFieldIsNamedWhenMissingOrOfTheWrongType) {
  for (const char* field : {"model_type", "num_hidden_layers", "num_attention_heads"}) {
    ExpectRefused(Without(Config(), field), kInvalid, std::string("config.json.") + field);
  }
  for (const char* field : {"model_type", "num_hidden_layers", "num_attention_heads",
                            "num_key_value_heads", "head_dim", "max_position_embeddings",
                            "rope_theta", "rope_scaling", "torch_dtype", "partial_rotary_factor"}) {
    Json config = Config();
    for (const Json& wrong : {Json(true), Json::array({1}), Json(-1.5)}) {
      config[field] = wrong;
      ExpectRefused(config, kInvalid, std::string("config.json.") + field);
    }
  }
}

TEST(HfConfigTest, NumbersOutOfRangeAreRefused) {
  ExpectRefused(With(R"({"num_hidden_layers": 0})"), kInvalid, "num_hidden_layers", "0");
  ExpectRefused(With(R"({"num_hidden_layers": 4294967297})"), kInvalid, "num_hidden_layers");
  ExpectRefused(With(R"({"head_dim": 1000000})"), kInvalid, "head_dim");
  ExpectRefused(With(R"({"max_position_embeddings": 18446744073709551615})"), kInvalid,
                "max_position_embeddings");
  ExpectRefused(With(R"({"rope_theta": 0})"), kInvalid, "rope_theta", "got 0");
  ExpectRefused(With(R"({"rope_scaling": {"type": "linear", "factor": 0}})"), kInvalid,
                "config.json.rope_scaling.factor", "got 0");
}

TEST(HfConfigTest, StringsFromTheConfigAreShownShortAndPrintable) {
  const auto spec =
      SpecFromHfConfig(With("{\"model_type\": \"a\\n" + std::string(4096, 'x') + "\"}").dump());
  EXPECT_EQ(std::string(spec.status().message()),
            "config.json.model_type: expected a known model type or an explicit pairing (half or "
            "interleaved), got a\\n" +
                std::string(62, 'x'));
}

// --- Golden configs -----------------------------------------------------------------------------

struct GoldenCase {
  const char* name;
  const char* role;
  const char* family;
  int32_t head_dim;
  Pairing pairing;
};

class GoldenConfigTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenConfigTest, GivesTheFrequenciesAndFactorOfTransformersModule) {
  const GoldenCase& c = GetParam();
  const std::string folder = std::string("tests/data/golden/rope/") + c.name + "/";
  const auto spec = SpecFromHfConfig(test::ReadTestFile(folder + c.role + "_config.json"));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->identity.family, c.family);
  EXPECT_EQ(spec->geometry.head_dim, c.head_dim);
  EXPECT_EQ(spec->rope.params.pairing, c.pairing);
  const test::SafetensorsLite tables(folder + "tables.safetensors");
  ExpectRope(spec->rope.params, tables.AsDouble(std::string(c.role) + ".inv_freq"),
             tables.AsDouble(std::string(c.role) + ".cos_f64")[0]);  // cos(0) times the factor
}

INSTANTIATE_TEST_SUITE_P(
    Published, GoldenConfigTest,
    ::testing::Values(
        GoldenCase{"llama3", "source", "llama", 128, Pairing::kHalf},
        GoldenCase{"llama3", "target", "llama", 128, Pairing::kHalf},
        GoldenCase{"yarn", "source", "qwen3", 128, Pairing::kHalf},
        GoldenCase{"yarn", "target", "qwen3", 128, Pairing::kHalf},
        GoldenCase{"yarn_both", "source", "qwen3", 128, Pairing::kHalf},
        GoldenCase{"yarn_both", "target", "qwen3", 128, Pairing::kHalf},
        GoldenCase{"partial", "source", "stablelm", 64, Pairing::kHalf},
        GoldenCase{"partial", "target", "persimmon", 64, Pairing::kHalf},
        GoldenCase{"partial_interleaved", "source", "glm", 128, Pairing::kInterleaved},
        GoldenCase{"partial_interleaved", "target", "glm", 128, Pairing::kInterleaved}),
    [](const auto& info) { return std::string(info.param.name) + "_" + info.param.role; });

TEST(FamilyConfigTest, SmallRealModelsAreRead) {
  for (const char* size : {"small", "large"}) {
    const auto spec = SpecFromHfConfig(
        test::ReadTestFile(std::string("tests/data/family/") + size + "/config.json"));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->identity.family, "qwen3");
    EXPECT_EQ(spec->geometry.head_dim, 64);
    EXPECT_EQ(spec->geometry.dtype, tensor::DType::kBf16);
    EXPECT_EQ(spec->rope.max_position, 4096);
  }
}

}  // namespace
}  // namespace kvbridge::model
