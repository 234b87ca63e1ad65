#include "proto/kvbridge/v1/crc32c.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace kvbridge::wire {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32cTest, GivesThePublishedValues) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\xff'))), 0x62A8AB43u);
  std::string ascending(32, '\0');
  for (int i = 0; i < 32; ++i) ascending[i] = static_cast<char>(i);
  EXPECT_EQ(Crc32c(Bytes(ascending)), 0x46DD794Eu);
}

uint32_t BitByBit(const std::string& text) {
  uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0);
  }
  return ~crc;
}

std::string Noise(size_t size) {
  std::string text(size, '\0');
  uint32_t state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return text;
}

// The fast path works in blocks of 3 * 4096 bytes: lengths around its multiples, at odd addresses.
TEST(Crc32cTest, AgreesWithTheDefinitionAtEveryLengthAndAlignment) {
  const std::string text = Noise(3 * 12288 + 64);
  for (const size_t size : {1, 7, 8, 9, 4095, 12287, 12288, 12289, 24576, 36871}) {
    for (const size_t offset : {0, 1, 5}) {
      const std::string part = text.substr(offset, size);
      EXPECT_EQ(Crc32c(Bytes(text).subspan(offset, size)), BitByBit(part))
          << size << " bytes from " << offset;
    }
  }
}

TEST(Crc32cTest, CopyingGivesTheSameChecksumAndTheSameBytes) {
  const std::string text = Noise(2 * 12288 + 77);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{12288}, text.size() - 1}) {
    std::string copy(text.size(), '\0');
    const auto part = Bytes(text).subspan(1, size);
    EXPECT_EQ(CopyCrc32c(std::as_writable_bytes(std::span(copy)).data(), part, 5), Crc32c(part, 5));
    EXPECT_EQ(copy, text.substr(1, size) + std::string(text.size() - size, '\0')) << size;
  }
}

TEST(Crc32cTest, PiecesGiveTheChecksumOfTheWhole) {
  const std::string text = Noise(50'000);
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{12288}, size_t{33333}, text.size()}) {
    const uint32_t first = Crc32c(Bytes(text).first(cut));
    EXPECT_EQ(Crc32c(Bytes(text).subspan(cut), first), Crc32c(Bytes(text))) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace kvbridge::wire
