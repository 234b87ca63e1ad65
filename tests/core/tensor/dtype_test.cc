#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

namespace kvbridge::tensor {
namespace {

TEST(DTypeTest, BothSpellingsOfEveryTypeAreRead) {
  const std::pair<const char*, DType> spellings[] = {
      {"bf16", DType::kBf16},      {"bfloat16", DType::kBf16},
      {"f16", DType::kF16},        {"float16", DType::kF16},
      {"f32", DType::kF32},        {"float32", DType::kF32},
      {"f8_e4m3", DType::kF8E4M3}, {"float8_e4m3fn", DType::kF8E4M3},
  };
  for (const auto& [name, dtype] : spellings) {
    const auto parsed = ParseDType(name);
    ASSERT_TRUE(parsed.ok()) << name;
    EXPECT_EQ(*parsed, dtype) << name;
    EXPECT_EQ(ParseDType(Name(dtype)).value(), dtype);
  }
}

TEST(DTypeTest, UnknownNamesAreRefusedByName) {
  for (const char* name : {"", "BF16", "fp16", "float8_e5m2", "bf16 "}) {
    const absl::Status status = ParseDType(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("got \"" + std::string(name) + "\""), absl::string_view::npos)
        << status;
  }
}

TEST(DTypeTest, SizesAreInBytes) {
  EXPECT_EQ(ByteSize(DType::kF32), 4u);
  EXPECT_EQ(ByteSize(DType::kBf16), 2u);
  EXPECT_EQ(ByteSize(DType::kF16), 2u);
  EXPECT_EQ(ByteSize(DType::kF8E4M3), 1u);
}

}  // namespace
}  // namespace kvbridge::tensor
