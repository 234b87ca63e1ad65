#include "proto/kvbridge/v1/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <nmmintrin.h>

namespace kvbridge::wire {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

// The crc instruction has a latency of three cycles and a throughput of one, so three independent
// streams run at full speed. They are joined by shifting a stream's crc over the bytes that follow
// it: a linear map on 32 bits, kept as four 256-entry tables.
constexpr size_t kBlock = 1024;
// Data are mostly touched here first, and the hardware's prefetch stops at page ends. Prefetching
// beyond the data is harmless.
constexpr size_t kAhead = 6 * kBlock;
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr uint32_t ShiftOneByte(uint32_t crc) {
  for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
  return crc;
}

ShiftTable MakeShiftTable(size_t bytes) {
  // Image of each single bit under "append `bytes` zero bytes"; the rest follows by linearity.
  std::array<uint32_t, 32> basis;
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < bytes; ++i) crc = ShiftOneByte(crc);
    basis[bit] = crc;
  }
  ShiftTable table{};
  for (int byte = 0; byte < 4; ++byte) {
    for (int value = 0; value < 256; ++value) {
      for (int bit = 0; bit < 8; ++bit) {
        if (value >> bit & 1) table[byte][value] ^= basis[8 * byte + bit];
      }
    }
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint64_t crc) {
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
         table[3][crc >> 24 & 0xff];
}

uint64_t Load64(const std::byte* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// The same line of each stream.
void PrefetchLines(const std::byte* p) {
  for (size_t stream = 0; stream < 3; ++stream) {
    _mm_prefetch(reinterpret_cast<const char*>(p + stream * kBlock), _MM_HINT_T0);
  }
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc) {
  static const ShiftTable kShift = MakeShiftTable(kBlock);
  uint64_t a = ~crc;
  const std::byte* p = data.data();
  size_t left = data.size();
  for (; left >= 3 * kBlock; left -= 3 * kBlock, p += 3 * kBlock) {
    uint64_t b = 0;
    uint64_t c = 0;
    for (size_t i = 0; i < kBlock; i += 8) {
      if (i % 64 == 0) PrefetchLines(p + kAhead + i);
      a = _mm_crc32_u64(a, Load64(p + i));
      b = _mm_crc32_u64(b, Load64(p + kBlock + i));
      c = _mm_crc32_u64(c, Load64(p + 2 * kBlock + i));
    }
    a = Shift(kShift, a) ^ b;
    a = Shift(kShift, a) ^ c;
  }
  for (; left >= 8; left -= 8, p += 8) a = _mm_crc32_u64(a, Load64(p));
  for (; left > 0; --left, ++p) {
    a = _mm_crc32_u8(static_cast<uint32_t>(a), static_cast<uint8_t>(*p));
  }
  return ~static_cast<uint32_t>(a);
}

uint32_t CopyCrc32c(std::byte* to, std::span<const std::byte> data, uint32_t crc) {
  // Both of a step's sides fit the first-level cache.
  constexpr size_t kStep = 12 * kBlock;
  while (!data.empty()) {
    const auto step = data.first(std::min(kStep, data.size()));
    std::memcpy(to, step.data(), step.size());
    crc = Crc32c(step, crc);
    to += step.size();
    data = data.subspan(step.size());
  }
  return crc;
}

}  // namespace kvbridge::wire
