#include "core/artifact/safetensors.h"

#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "core/artifact/safetensors_writer.h"
#include "core/base/file.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"

namespace kvbridge::artifact {
namespace {

std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + data;
}

absl::Status ParseStatus(const std::string& file) {
  return SafeTensors::Parse(std::as_bytes(std::span(file)), "test").status();
}

void ExpectRefused(const std::string& file, const std::string& message) {
  const absl::Status status = ParseStatus(file);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(message), absl::string_view::npos) << status;
}

TEST(SafeTensorsTest, ReadsTensorsAndMetadata) {
  const std::string file =
      File(R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
           R"("m":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}}   )",
           std::string("\1\0\0\x80\x3f\0\0\0\x40", 9));
  const SafeTensors parsed = SafeTensors::Parse(std::as_bytes(std::span(file)), "test").value();
  EXPECT_EQ(parsed.metadata().at("a"), "b");
  const StTensor* x = parsed.Find("x", StDType::kF32, {2}).value();
  float values[2];
  std::memcpy(values, x->data.data(), sizeof(values));
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
  EXPECT_EQ(parsed.Find("y").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parsed.Find("x", StDType::kF32, {1, 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SafeTensorsTest, AnEmptyContainerIsAContainer) {
  EXPECT_TRUE(ParseStatus(File("{}", "")).ok());
}

// The product wraps to zero, and a zero-byte tensor would pass every later check (B58).
TEST(SafeTensorsTest, ShapeProductThatWrapsToZeroIsRefused) {
  ExpectRefused(
      File(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""),
      "overflows");
}

// The buffer's size must not come from the shape and the bytes from the offsets (B59).
TEST(SafeTensorsTest, OffsetsMustSpanExactlyTheShape) {
  ExpectRefused(File(R"({"x":{"dtype":"F32","shape":[32,8],"data_offsets":[0,65536]}})",
                     std::string(65536, '\0')),
                "expected 1024 bytes for F32 [32, 8], got 65536");
}

TEST(SafeTensorsTest, OverlapHoleAndRestAreRefused) {
  const auto two = [](const char* first, const char* second) {
    return std::string(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)") + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  ExpectRefused(File(two("[0,4]", "[2,6]"), std::string(6, 'x')), "(overlap)");
  ExpectRefused(File(two("[0,4]", "[5,9]"), std::string(9, 'x')), "(hole)");
  ExpectRefused(File(two("[0,4]", "[4,8]"), std::string(9, 'x')), "cover 9 bytes of data, got 8");
}

TEST(SafeTensorsTest, HeaderLengthIsCheckedAgainstTheFile) {
  ExpectRefused(std::string(8, '\xff'), "header length");
  ExpectRefused(std::string(3, '\0'), "at least 8 bytes");
  ExpectRefused(File("{}", "").substr(0, 9), "1 bytes left in the file");
}

TEST(SafeTensorsTest, NamesInErrorsAreSafeToPrint) {
  ExpectRefused(File("{\"a\\u0007\\n" + std::string(500, 'z') +
                         R"(":{"dtype":"F4","shape":[],"data_offsets":[0,0]}})",
                     ""),
                "\"a\\007\\nzzz");
}

class SafeTensorsWriterTest : public ::testing::Test {
 protected:
  TempDir dir_;
  std::string bytes_ = std::string("\1\2\3\4\5\6\7\10\11\12\13\14", 12);
  std::map<std::string, StTensor> tensors_ = {
      {"a", {StDType::kBf16, {1, 2}, std::as_bytes(std::span(bytes_)).subspan(0, 4)}},
      {"b", {StDType::kF32, {2}, std::as_bytes(std::span(bytes_)).subspan(4, 8)}}};
};

TEST_F(SafeTensorsWriterTest, WhatWasWrittenIsReadBack) {
  ASSERT_TRUE(WriteSafeTensors(dir_ / "x", tensors_, {{"k", "v"}}).ok());
  const std::string file = Slurp(dir_ / "x");
  const SafeTensors parsed = SafeTensors::Parse(std::as_bytes(std::span(file)), "x").value();
  EXPECT_EQ(parsed.metadata().at("k"), "v");
  ASSERT_EQ(parsed.tensors().size(), 2u);
  for (const auto& [name, tensor] : tensors_) {
    const StTensor* read = parsed.Find(name, tensor.dtype, tensor.shape).value();
    EXPECT_TRUE(std::equal(read->data.begin(), read->data.end(), tensor.data.begin())) << name;
  }
}

TEST_F(SafeTensorsWriterTest, LargeElementsComeFirstAndDataAreAligned) {
  ASSERT_TRUE(WriteSafeTensors(dir_ / "x", tensors_, {}).ok());
  const std::string file = Slurp(dir_ / "x");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  EXPECT_EQ((length + 8) % 64, 0u);
  EXPECT_EQ(file.substr(length + 8), bytes_.substr(4) + bytes_.substr(0, 4));
}

TEST_F(SafeTensorsWriterTest, TheSameContentGivesTheSameBytes) {
  ASSERT_TRUE(WriteSafeTensors(dir_ / "x", tensors_, {{"k", "v"}, {"a", "b"}}).ok());
  ASSERT_TRUE(WriteSafeTensors(dir_ / "y", tensors_, {{"a", "b"}, {"k", "v"}}).ok());
  EXPECT_EQ(Slurp(dir_ / "x"), Slurp(dir_ / "y"));
}

TEST_F(SafeTensorsWriterTest, ATensorWhoseBytesContradictItsShapeLeavesNoFile) {
  tensors_["b"].shape = {3};
  EXPECT_EQ(WriteSafeTensors(dir_ / "x", tensors_, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace kvbridge::artifact
