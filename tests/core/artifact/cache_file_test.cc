#include "core/artifact/cache_file.h"

#include <cstring>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "core/artifact/safetensors.h"
#include "core/artifact/safetensors_writer.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/synthetic_mapper.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

constexpr int64_t kTokens = 3;

// A cache in the inline tile layout, so that writing has to transpose.
struct Example {
  explicit Example(tensor::DType dtype = tensor::DType::kBf16) {
    cache.spec = SyntheticSpec("m", 2, 0.1);
    cache.spec.geometry.dtype = dtype;
    const model::KvGeometry& geometry = cache.spec.geometry;
    bytes.resize(kTokens * geometry.token_bytes());
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 97);
    cache.view = kv::DenseTileView(bytes.data(), dtype, geometry.layers, kTokens, geometry.kv_heads,
                                   geometry.head_dim);
    cache.positions = {0, 5, 9};
  }
  std::vector<std::byte> bytes;
  CacheFile cache;
};

class CacheFileTest : public ::testing::Test {
 protected:
  TempDir dir_;
};

void ExpectSameRows(const kv::KvView& a, const kv::KvView& b) {
  std::vector<float> rows_a(kTokens * a.row());
  std::vector<float> rows_b(kTokens * a.row());
  for (int32_t l = 0; l < a.layers; ++l) {
    for (const kv::Component c : kv::kComponents) {
      kv::ReadRows(a, l, c, {0, kTokens}, rows_a.data());
      kv::ReadRows(b, l, c, {0, kTokens}, rows_b.data());
      EXPECT_EQ(rows_a, rows_b) << "layer " << l;
    }
  }
}

TEST_F(CacheFileTest, EveryElementTypeSurvives) {
  for (const auto dtype :
       {tensor::DType::kBf16, tensor::DType::kF16, tensor::DType::kF32, tensor::DType::kF8E4M3}) {
    Example example(dtype);
    if (dtype == tensor::DType::kF8E4M3) {
      for (kv::Plane& plane : example.cache.view.planes) plane.scales = {0.5f, 0.25f};
    }
    example.cache.token_ids = {7, 8, 9};
    const absl::Status written = WriteCacheFile(dir_ / "c", example.cache);
    ASSERT_TRUE(written.ok()) << written;
    const auto read = ReadCacheFile(dir_ / "c");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->spec, example.cache.spec);
    EXPECT_EQ(read->positions, example.cache.positions);
    EXPECT_EQ(read->token_ids, example.cache.token_ids);
    ExpectSameRows(read->view, example.cache.view);
  }
}

TEST_F(CacheFileTest, KeysLieHeadMajorInTheFile) {
  const Example example;
  ASSERT_TRUE(WriteCacheFile(dir_ / "c", example.cache).ok());
  const std::string file = Slurp(dir_ / "c");
  const SafeTensors parsed = SafeTensors::Parse(std::as_bytes(std::span(file)), "c").value();
  const StTensor* keys = parsed.Find("keys", StDType::kBf16, {2, 2, kTokens, 8}).value();
  // Layer 1, head 1, token 2.
  const size_t at = ((1 * 2 + 1) * kTokens + 2) * 8 * 2;
  const std::byte* expected = example.cache.view.Row(1, kv::Component::kKey, 2) + 1 * 8 * 2;
  EXPECT_EQ(std::memcmp(keys->data.data() + at, expected, 16), 0);
}

TEST_F(CacheFileTest, WhatContradictsItselfIsNotWritten) {
  const auto status = [&](auto edit) {
    Example example;
    edit(example.cache);
    const absl::Status written = WriteCacheFile(dir_ / "c", example.cache);
    EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
    return written.code();
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(status([](CacheFile& c) { c.positions = {0, 5}; }), invalid);
  EXPECT_EQ(status([](CacheFile& c) { c.positions = {0, 5, 5}; }), invalid);
  EXPECT_EQ(status([](CacheFile& c) { c.positions = {0, 5, 4096}; }), invalid);
  EXPECT_EQ(status([](CacheFile& c) { c.token_ids = {1}; }), invalid);
  EXPECT_EQ(status([](CacheFile& c) { c.spec.geometry.layers = 3; }), invalid);
}

TEST_F(CacheFileTest, DamagedFilesAreNamed) {
  const Example example;
  ASSERT_TRUE(WriteCacheFile(dir_ / "good", example.cache).ok());
  const std::string file = Slurp(dir_ / "good");
  const SafeTensors good = SafeTensors::Parse(std::as_bytes(std::span(file)), "good").value();
  const auto expect = [&](auto edit, const char* message) {
    std::map<std::string, StTensor> tensors = good.tensors();
    std::map<std::string, std::string> metadata = good.metadata();
    edit(tensors, metadata);
    ASSERT_TRUE(WriteSafeTensors(dir_ / "bad", tensors, metadata).ok());
    const absl::Status status = ReadCacheFile(dir_ / "bad").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find(message), absl::string_view::npos) << status;
  };
  expect([](auto&, auto& m) { m["format"] = "kvbridge"; }, "format");
  expect([](auto&, auto& m) { m.erase("rope"); }, "rope");
  expect([](auto&, auto& m) { m["geometry"] = "{"; }, "geometry");
  expect([](auto& t, auto&) { t.erase("values"); }, "values");
  expect([](auto& t, auto&) { t["keys"].shape = {2, 2, 8, kTokens}; }, "keys");
  expect([](auto& t, auto&) { t["more"] = t["keys"]; }, "more");
  expect([](auto& t, auto&) { t["keys"].dtype = StDType::kF16; }, "keys");
}

}  // namespace
}  // namespace kvbridge::artifact
