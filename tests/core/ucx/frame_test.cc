#include "core/ucx/frame.h"

#include <string>

#include "gtest/gtest.h"

namespace kvbridge::ucx {
namespace {

const std::string kToken = "0123456789abcdef";

TEST(FrameTest, BytesAreAsDocumented) {
  const std::string bytes =
      EncodeHeader({.token = kToken, .sequence = 0x0102030405060708, .head = "hd"});
  EXPECT_EQ(bytes, "KVU1" + kToken + std::string("\x08\x07\x06\x05\x04\x03\x02\x01") + "hd");
}

TEST(FrameTest, WhatWasEncodedIsParsed) {
  const std::string bytes = EncodeHeader({.token = kToken, .sequence = ~0ull, .head = ""});
  const auto header = ParseHeader(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->token, kToken);
  EXPECT_EQ(header->sequence, ~0ull);
  EXPECT_EQ(header->head, "");
}

TEST(FrameTest, ATruncatedHeaderIsRefused) {
  const std::string bytes = EncodeHeader({.token = kToken, .sequence = 0, .head = ""});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ParseHeader(bytes.substr(0, size)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(FrameTest, AnotherMagicAndALongHeadAreRefused) {
  std::string bytes = EncodeHeader({.token = kToken, .sequence = 0, .head = "x"});
  bytes[3] = '2';
  EXPECT_EQ(ParseHeader(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string longest(kMaxHeadBytes, 'h');
  EXPECT_TRUE(ParseHeader(EncodeHeader({.token = kToken, .head = longest})).ok());
  EXPECT_EQ(ParseHeader(EncodeHeader({.token = kToken, .head = longest + "h"})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvbridge::ucx
