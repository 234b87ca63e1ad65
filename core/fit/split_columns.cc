#include "core/fit/split_columns.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <xmmintrin.h>

#include "core/base/status_macros.h"
#include "core/device/cpu/isa.h"

namespace kvbridge::fit {
namespace {

using device::cpu::kBlock;
using device::cpu::kBlockElements;

constexpr int64_t kStepBytes = kBlockElements * 2;  // 32 rows of 32 columns
// What is multiplied before sums go back to memory: a run's 16 panels and its sums stay in the
// second-level cache.
constexpr int64_t kChunkSteps = 8;
constexpr int64_t kChunkBytes = 2 * kChunkSteps * kStepBytes;
constexpr int64_t kHalf = 16;  // rows of an AMX tile, and pairs of BF16 in one of its rows

int64_t Ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

const device::cpu::KernelSet& Kernels() { return device::cpu::KernelsFor(device::Isa::kAmx); }

// To the nearest BF16, ties to even; finite.
uint32_t Bf16Bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// h and l of a pair of numbers that follow each other in a column.
struct SplitPair {
  uint32_t high;
  uint32_t low;
};

SplitPair Split(float even, float odd) {
  const uint32_t he = Bf16Bits(even), ho = Bf16Bits(odd);
  const uint32_t le = Bf16Bits(even - std::bit_cast<float>(he << 16));
  const uint32_t lo = Bf16Bits(odd - std::bit_cast<float>(ho << 16));
  return {he | ho << 16, le | lo << 16};
}

// An AMX tile of columns to one of rows: 16 x 16 pairs, transposed.
void Transpose(const std::byte* from, std::byte* to) {
  const auto* src = reinterpret_cast<const float*>(from);
  auto* dst = reinterpret_cast<float*>(to);
  for (int64_t i = 0; i < kHalf; i += 4) {
    for (int64_t j = 0; j < kHalf; j += 4) {
      __m128 a = _mm_load_ps(src + i * kHalf + j), b = _mm_load_ps(src + (i + 1) * kHalf + j);
      __m128 c = _mm_load_ps(src + (i + 2) * kHalf + j), d = _mm_load_ps(src + (i + 3) * kHalf + j);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      _mm_store_ps(dst + j * kHalf + i, a);
      _mm_store_ps(dst + (j + 1) * kHalf + i, b);
      _mm_store_ps(dst + (j + 2) * kHalf + i, c);
      _mm_store_ps(dst + (j + 3) * kHalf + i, d);
    }
  }
}

}  // namespace

bool SplitColumns::Available() {
  static const bool available = device::cpu::SupportedIsas().front() == device::Isa::kAmx;
  return available;
}

uint64_t SplitColumns::Bytes(std::span<const int64_t> widths, int64_t rows) {
  int64_t panels = 0;
  for (const int64_t width : widths) panels += Ceil(width, kBlock);
  return static_cast<uint64_t>(panels * Ceil(Ceil(rows, kBlock), kChunkSteps) * kChunkBytes);
}

SplitColumns::SplitColumns(std::span<const int64_t> widths, int64_t rows)
    : widths_(widths.begin(), widths.end()),
      first_panel_{0},
      panel_bytes_(Ceil(Ceil(rows, kBlock), kChunkSteps) * kChunkBytes) {
  int64_t column = 0;
  for (const int64_t width : widths_) {
    for (int64_t at = 0; at < width; at += kBlock) {
      panels_.push_back({column + at, column + std::min(width, at + kBlock)});
    }
    column += width;
    first_panel_.push_back(panels());
  }
}

absl::StatusOr<std::unique_ptr<SplitColumns>> SplitColumns::Create(std::span<const int64_t> widths,
                                                                   int64_t rows) {
  std::unique_ptr<SplitColumns> split(new SplitColumns(widths, rows));
  KVB_ASSIGN_OR_RETURN(split->memory_, base::Pages::Map(Bytes(widths, rows)));
  return split;
}

std::byte* SplitColumns::chunk(int64_t panel, int64_t chunk) const {
  return memory_->as<std::byte>() + panel * panel_bytes_ + chunk * kChunkBytes;
}

void SplitColumns::Pack(int64_t panel, const float* first, int64_t stride, int64_t rows) {
  const auto [begin, end] = panels_[panel];
  const int64_t steps = Ceil(rows, kBlock);
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t in_chunk = std::min(kChunkSteps, steps - s / kChunkSteps * kChunkSteps);
    std::byte* high = chunk(panel, s / kChunkSteps) + s % kChunkSteps * kStepBytes;
    std::byte* low = high + in_chunk * kStepBytes;
    for (int64_t pair = 0; pair < kHalf; ++pair) {
      float two_rows[2][kBlock] = {};
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t r = s * kBlock + 2 * pair + i;
        if (r < rows) std::copy_n(first + r * stride + begin, end - begin, two_rows[i]);
      }
      uint32_t pairs[2][kBlock];
      for (int64_t j = 0; j < kBlock; ++j) {
        const SplitPair split = Split(two_rows[0][j], two_rows[1][j]);
        pairs[0][j] = split.high;
        pairs[1][j] = split.low;
      }
      constexpr int64_t kTileBytes = kStepBytes / 2, kRowBytes = kHalf * 4;
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t at = half * kTileBytes + pair * kRowBytes;
        std::memcpy(high + at, pairs[0] + half * kHalf, kRowBytes);
        std::memcpy(low + at, pairs[1] + half * kHalf, kRowBytes);
      }
    }
  }
}

absl::StatusOr<SplitColumns::Scratch> SplitColumns::NewScratch() const {
  int64_t most = 0;
  for (size_t run = 0; run < widths_.size(); ++run) most = std::max(most, panels_of(run));
  Scratch scratch;
  KVB_ASSIGN_OR_RETURN(scratch.features_, base::Pages::Map(most * kChunkBytes));
  KVB_ASSIGN_OR_RETURN(scratch.sums_,
                       base::Pages::Map(most * most * kBlockElements * sizeof(float)));
  return scratch;
}

void SplitColumns::Multiply(size_t x, size_t y, int64_t rows, Scratch& scratch,
                            float* product) const {
  const int64_t m = panels_of(x), n = panels_of(y), steps = Ceil(rows, kBlock);
  const auto* features = scratch.features_->as<std::byte>();
  auto* sums = scratch.sums_->as<float>();
  Kernels().enter();
  for (int64_t c = 0; c * kChunkSteps < steps; ++c) {
    const int64_t in_chunk = std::min(kChunkSteps, steps - c * kChunkSteps);
    for (int64_t i = 0; i < m; ++i) {
      const std::byte* from = chunk(first_panel_[x] + i, c);
      for (int64_t at = 0; at < 2 * in_chunk * kStepBytes; at += kStepBytes / 2) {
        Transpose(from + at, scratch.features_->as<std::byte>() + i * kChunkBytes + at);
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      const std::byte* columns = chunk(first_panel_[y] + j, c);
      for (int64_t i = 0; i < (x == y ? j + 1 : m); ++i) {
        const std::byte* high = features + i * kChunkBytes;
        const std::byte* low = high + in_chunk * kStepBytes;
        // Each with h of the columns, then with l.
        const void* high_twice[] = {high, high};
        const void* low_twice[] = {low, low};
        device::cpu::GemmArgs args{.a = high_twice,
                                   .b = columns,
                                   .c = sums + (i * n + j) * kBlockElements,
                                   .segments = 2,
                                   .steps = static_cast<int32_t>(in_chunk),
                                   .accumulate = c > 0};
        Kernels().gemm_bf16(args);
        args.a = low_twice;
        args.accumulate = true;
        Kernels().gemm_bf16(args);
      }
    }
  }
  Kernels().leave();
  for (int64_t row = 0; row < widths_[x]; ++row) {
    for (int64_t j = row / kBlock * (x == y ? 1 : 0); j < n; ++j) {
      const int64_t column = j * kBlock;
      std::copy_n(sums + (row / kBlock * n + j) * kBlockElements + row % kBlock * kBlock,
                  std::min<int64_t>(kBlock, widths_[y] - column),
                  product + row * widths_[y] + column);
    }
  }
}

}  // namespace kvbridge::fit
