#include "core/fit/shard.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/strict_json.h"
#include "core/fit/shard_folder.h"
#include "core/model/hf_config.h"
#include "core/rope/inv_freq.h"
#include "core/rope/rope_table.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/fit/test_shards.h"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::fit {
namespace {

using absl::StatusCode;
using artifact::StDType;
using artifact::TempDir;
using kv::Component;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/data/golden/";

std::vector<float> ReadHead(const Shard& shard, Role role, Component component, int32_t layer,
                            int32_t head, bool strip = true) {
  const int32_t dim = shard.content().specs.of(role).geometry.head_dim;
  std::vector<float> rows(static_cast<size_t>(shard.rows() * dim));
  shard.ReadHead(role, component, layer, head, 0, shard.rows(), strip, rows.data(), dim);
  return rows;
}

class OwnShard : public ::testing::Test {
 protected:
  absl::StatusOr<Shard> Open(const ShardFile& file, const ShardOptions& options = {}) {
    file.Write(dir_ / "x.safetensors");
    return Shard::Open(dir_ / "x.safetensors", options);
  }
  absl::Status Refused(const ShardFile& file) { return Open(file).status(); }

  TempDir dir_;
};

TEST_F(OwnShard, KeysComeOutUnrotatedWithoutTheAttentionFactor) {
  TestShard test;
  ShardFile file = MakeShard(test);
  const std::vector<float> content(file.floats("target.keys"), file.floats("target.keys") + 16 * 8);
  std::vector<int64_t> positions(16);
  for (size_t i = 0; i < 16; ++i) positions[i] = static_cast<int64_t>(4 * i);
  const rope::RopeTable table(test.specs.target.rope.params, positions);
  for (int64_t r = 0; r < 16; ++r) {
    rope::ApplyRope(table.row(r), file.floats("target.keys") + r * 8, 1, 8);
  }
  const auto shard = Open(file);
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(shard->content().positions, positions);
  const std::vector<float> rows = ReadHead(*shard, Role::kTarget, Component::kKey, 0, 0);
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(rows[i], content[i], 1e-6) << i;
}

TEST_F(OwnShard, StrippedKeysAndValuesComeOutAsTheyAre) {
  ShardFile file = MakeShard({.keys = "stripped"});
  const auto shard = Open(file);
  ASSERT_TRUE(shard.ok()) << shard.status();
  for (const auto& [component, name] :
       {std::pair(Component::kKey, "source.keys"), std::pair(Component::kValue, "source.values")}) {
    // Layer 1, head 1 of two heads.
    const float* stored = file.floats(name) + (1 * 2 + 1) * 16 * 8;
    EXPECT_EQ(ReadHead(*shard, Role::kSource, component, 1, 1),
              std::vector<float>(stored, stored + 16 * 8));
  }
}

TEST_F(OwnShard, ReadsBf16AndEveryStrideThRow) {
  const auto shard = Open(MakeShard({.dtype = StDType::kBf16}), {.token_stride = 5});
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_THAT(shard->content().positions, ElementsAre(0, 20, 40, 60));
  EXPECT_EQ(shard->rows(), 4);
}

TEST_F(OwnShard, WritesRowsAtTheCallersStride) {
  const auto shard = Open(MakeShard({}));
  ASSERT_TRUE(shard.ok());
  const std::vector<float> dense = ReadHead(*shard, Role::kSource, Component::kValue, 2, 0);
  std::vector<float> wide(3 * 20, -1);
  shard->ReadHead(Role::kSource, Component::kValue, 2, 0, 5, 8, true, wide.data(), 20);
  for (size_t r = 0; r < 3; ++r) {
    for (size_t d = 0; d < 20; ++d) {
      ASSERT_EQ(wide[r * 20 + d], d < 8 ? dense[(5 + r) * 8 + d] : -1);
    }
  }
}

TEST_F(OwnShard, RefusesWhatIsMissingOrMalformed) {
  const ShardFile good = MakeShard({});
  const auto expect = [&](const std::string& message, const auto& spoil) {
    ShardFile file = good;
    spoil(file);
    const absl::Status status = Refused(file);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << message << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("x.safetensors"));
  };
  expect("\"target.values\" is missing", [](auto& f) { f.tensors.erase("target.values"); });
  expect("\"positions\" is missing", [](auto& f) { f.tensors.erase("positions"); });
  expect("unknown tensor \"more\"", [](auto& f) { f.tensors["more"] = f.tensors["positions"]; });
  expect("metadata keys: expected", [](auto& f) { f.metadata["keys"] = "Stripped"; });
  expect("metadata domain is missing", [](auto& f) { f.metadata.erase("domain"); });
  expect("metadata schema", [](auto& f) { f.metadata["schema"] = "2"; });
  expect("metadata format", [](auto& f) { f.metadata["format"] = "pt"; });
  expect("metadata source", [](auto& f) { f.metadata["source"] = "{"; });
  expect("source.keys: expected [layers, kv_heads, rows, head_dim] [3, 2, 16, 8]", [](auto& f) {
    f.tensors["source.keys"].shape = {2, 3, 16, 8};
  });
  expect("source.keys: expected BF16, F16 or F32, got I32",
         [](auto& f) { f.tensors["source.keys"].dtype = StDType::kI32; });
  expect("\"token_ids\": expected I64 [16]", [](auto& f) {
    f.tensors["token_ids"].shape = {4, 4};
  });
  expect("positions[0]",
         [](auto& f) { std::fill_n(f.tensors["positions"].data.begin(), 8, std::byte{255}); });
  expect("positions[1]", [](auto& f) { f.tensors["positions"].data.assign(128, std::byte{0}); });
  expect("row_weight.key", [](auto& f) { f.tensors["row_weight.key"] = f.tensors["positions"]; });
}

TEST_F(OwnShard, TwoTokenizersAreAnIncompatiblePair) {
  TestShard test;
  test.specs.target.identity.tokenizer_sha256 = std::string(64, 'b');
  const absl::Status status = Refused(MakeShard(test));
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer"));
}

TEST_F(OwnShard, RowWeightsAreAccepted) {
  ShardFile file = MakeShard({});
  file.tensors["row_weight.key"] = {StDType::kF32, {2, 2, 16}, std::vector<std::byte>(256)};
  EXPECT_TRUE(Open(file).ok());
}

TEST(PrototypeShard, GoldenKeysAreUnrotatedByTheFilesOwnTables) {
  for (const std::string name : {"main/seq_0000", "main/seq_0005", "interleaved/seq_0001"}) {
    SCOPED_TRACE(name);
    const std::string folder = absl::StrCat(kGolden, "calib/", name.substr(0, name.find('/')));
    const auto first = Shard::Open(folder + "/seq_0000.safetensors");
    ASSERT_TRUE(first.ok()) << first.status();
    const std::string path = absl::StrCat(kGolden, "calib/", name, ".safetensors");
    const auto shard = Shard::Open(path, {.declared = first->content().specs});
    ASSERT_TRUE(shard.ok()) << shard.status();
    const test::SafetensorsLite file(path);
    const auto keys = file.AsFloat("target.keys");
    const auto cos = file.AsFloat("target.rope_cos"), sin = file.AsFloat("target.rope_sin");
    const model::ModelSpec& spec = shard->content().specs.target;
    const int32_t dim = spec.geometry.head_dim, half = dim / 2;
    const bool neighbours = spec.rope.params.pairing == rope::Pairing::kInterleaved;
    const std::vector<float> rows = ReadHead(*shard, Role::kTarget, Component::kKey, 2, 1);
    const float* head = keys.data() + (2 * 2 + 1) * shard->rows() * dim;
    for (int64_t t = 0; t < shard->rows(); ++t) {
      for (int32_t i = 0; i < half; ++i) {
        const int32_t a = neighbours ? 2 * i : i, b = neighbours ? 2 * i + 1 : i + half;
        const double c = cos[t * dim + a], s = sin[t * dim + a];
        const double x = head[t * dim + a], y = head[t * dim + b];
        ASSERT_NEAR(rows[t * dim + a], (x * c + y * s) / (c * c + s * s), 2e-6);
        ASSERT_NEAR(rows[t * dim + b], (y * c - x * s) / (c * c + s * s), 2e-6);
      }
    }
  }
}

TEST(PrototypeShard, RotationAndPositionsAreReadOffTheTables) {
  const auto first = Shard::Open(absl::StrCat(kGolden, "calib/main/seq_0000.safetensors"));
  ASSERT_TRUE(first.ok()) << first.status();
  std::vector<int64_t> dense(96);
  std::iota(dense.begin(), dense.end(), 0);
  EXPECT_EQ(first->content().positions, dense);
  for (const auto& [role, theta] : {std::pair(Role::kSource, 1e4), std::pair(Role::kTarget, 1e6)}) {
    const rope::RopeParams expected =
        *rope::MakeRopeParams(theta, 32, rope::Pairing::kHalf, rope::DefaultScaling{});
    const rope::RopeParams& got = first->content().specs.of(role).rope.params;
    EXPECT_EQ(got.pairing, expected.pairing);
    EXPECT_EQ(got.attention_factor, 1);
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_NEAR(got.inv_freq[i], expected.inv_freq[i], 2e-7 * expected.inv_freq[i]);
    }
  }
  EXPECT_EQ(first->content().specs.target.geometry.layers, 6);
  EXPECT_EQ(first->content().sequence_id, "main-0000");
}

model::ModelSpec SpecOf(const std::string& path) {
  auto spec = model::SpecFromHfConfig(artifact::Slurp(path));
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

SpecPair Declared(const std::string& name, const Shard& like) {
  SpecPair specs = like.content().specs;
  for (const Role role : kRoles) {
    specs.of(role).rope =
        SpecOf(absl::StrCat(kGolden, "rope/", name, "/", Name(role), "_config.json")).rope;
    specs.of(role).rope.max_position = 0;
  }
  return specs;
}

// The second shard's positions are random in 0..8191.
TEST(PrototypeShard, PositionsOfScaledAndPartialRotationsAgreeBetweenTheModels) {
  for (const std::string name : {"yarn", "partial"}) {
    SCOPED_TRACE(name);
    const std::string folder = absl::StrCat(kGolden, "rope/", name, "/calib/");
    const auto first = Shard::Open(folder + "seq_0000.safetensors");
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second =
        Shard::Open(folder + "seq_0001.safetensors", {.declared = Declared(name, *first)});
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_GT(second->content().positions.back(), 4000);
    EXPECT_LT(second->content().positions.back(), 8192);
  }
}

// The tables' factor is 1.1386 for YaRN x4: turning back alone would leave keys 1.2965 too large.
TEST(PrototypeShard, YarnsFactorIsDividedOut) {
  const std::string path = absl::StrCat(kGolden, "rope/yarn/calib/seq_0000.safetensors");
  const auto shard = Shard::Open(path);
  ASSERT_TRUE(shard.ok()) << shard.status();
  const double factor = shard->content().specs.target.rope.params.attention_factor;
  EXPECT_NEAR(factor, 1.138629436, 1e-6);
  const auto keys = test::SafetensorsLite(path).AsFloat("target.keys");
  const std::vector<float> rows = ReadHead(*shard, Role::kTarget, Component::kKey, 0, 0);
  double cached = 0, stripped = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    cached += double{keys[i]} * keys[i];
    stripped += double{rows[i]} * rows[i];
  }
  EXPECT_NEAR(std::sqrt(cached / stripped), factor, 1e-5);
}

TEST(PrototypeShard, AnotherModelsTablesAreRefused) {
  const std::string path = absl::StrCat(kGolden, "calib/main/seq_0000.safetensors");
  const auto shard = Shard::Open(path);
  ASSERT_TRUE(shard.ok());
  SpecPair specs = shard->content().specs;
  for (double& f : specs.target.rope.params.inv_freq) f *= 0.99;
  const absl::Status other = Shard::Open(path, {.declared = specs}).status();
  EXPECT_EQ(other.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("target.rope: expected the model's rotation"));
  specs = shard->content().specs;
  specs.source.rope.params.pairing = rope::Pairing::kInterleaved;
  EXPECT_EQ(Shard::Open(path, {.declared = specs}).status().code(),
            StatusCode::kFailedPrecondition);
}

// What a strict reader should do with each, in the words of the golden data, and where ours differs
// from "accept or reject, say which".
TEST(PrototypeShard, MalformedGoldenShardsGetNamedErrors) {
  const std::map<std::string, std::string> expected = {
      {"missing_target_values", "\"target.values\" is missing"},
      {"missing_rope_cos", "\"source.rope_cos\" is missing"},
      {"extra_tensor", "unknown tensor"},
      {"token_axes_differ", "target.keys: expected the source's 1 batch elements of 12 tokens"},
      {"rope_shapes_differ",
       "source.rope_cos: expected [1 or 1, 12, an even rotary_dim up to 4], got"},
      {"int_keys", "source.keys: expected BF16, F16 or F32, got I32"},
      {"rank4_keys", "source.keys: expected [layers, batch, kv_heads, tokens, head_dim]"},
      {"schema_2", "metadata schema: expected \"1\", got \"2\""},
      {"no_metadata", "metadata format is missing"},
      {"content_flag_True",
       "source_keys_are_content: expected \"true\" or \"false\", got \"True\""},
      {"interleaved_flag_missing", "_interleaved is missing"},
      {"rope_not_unit", "source.rope: expected sqrt(cos^2 + sin^2) to be one factor"},
      {"zero_tokens", "each at least 1"},
      {"one_token", "begin at positions 0 and 1"},
      {"truncated", "data_offsets: expected begin <= end <= 2294"},
      {"empty_file", "header length"},
  };
  // Their numbers are not read when a shard is opened: accumulate_test.cc.
  const std::set<std::string> opened = {"ok", "nan_key", "inf_value", "half_keys",
                                        "constant_target"};
  std::ifstream cases(absl::StrCat(kGolden, "malformed_shards/cases.jsonl"));
  int seen = 0;
  for (std::string line; std::getline(cases, line); ++seen) {
    const std::string name = base::Json::parse(line)["name"];
    const absl::Status status =
        Shard::Open(absl::StrCat(kGolden, "malformed_shards/", name, "/seq_0000.safetensors"))
            .status();
    if (opened.contains(name)) {
      EXPECT_TRUE(status.ok()) << name << ": " << status;
      continue;
    }
    ASSERT_TRUE(expected.contains(name)) << name << ": " << status;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected.at(name))) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("seq_0000.safetensors")) << name;
  }
  EXPECT_EQ(seen, 21);
}

}  // namespace
}  // namespace kvbridge::fit
