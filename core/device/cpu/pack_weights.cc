// Weights arrive row by row of features; the kernels want pairs of features side by side. A pass
// over the bytes costs about what reading and writing them costs.

#include <algorithm>
#include <cstring>

#include <emmintrin.h>

#include "core/device/cpu/resident_weights.h"
#include "core/tensor/convert.h"

namespace kvbridge::device::cpu {
namespace {

using tensor::DType;

bool AllFinite(DType dtype, const std::byte* data, size_t n) {
  if (dtype == DType::kBf16) {
    uint16_t largest = 0;
    for (size_t i = 0; i < n; ++i) {
      uint16_t bits;
      std::memcpy(&bits, data + 2 * i, 2);
      largest = std::max<uint16_t>(largest, bits & 0x7fff);
    }
    return largest < 0x7f80;
  }
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, data + 4 * i, 4);
    largest = std::max(largest, bits & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

// Rows of one step of one head: [32 features][padded columns], converted and padded with zeros.
class StepRows {
 public:
  StepRows(DType from, DType to, int32_t head_dim, int32_t padded_dim)
      : from_(from),
        to_(to),
        head_dim_(head_dim),
        stride_(padded_dim * tensor::ByteSize(to)),
        rows_(kBlock * stride_),
        wide_(head_dim) {}

  void Fill(const std::byte* weight, int32_t rows) {
    const size_t source_stride = head_dim_ * tensor::ByteSize(from_);
    for (int32_t r = 0; r < kBlock; ++r) {
      std::byte* row = rows_.data() + r * stride_;
      if (r >= rows) {
        std::memset(row, 0, stride_);
      } else if (from_ == to_) {
        std::memcpy(row, weight + r * source_stride, source_stride);
      } else {
        tensor::DecodeRow(from_, weight + r * source_stride, 1, wide_.data(), head_dim_);
        tensor::EncodeRow(to_, wide_.data(), 1, row, head_dim_);
      }
    }
  }

  const std::byte* row(int32_t r) const { return rows_.data() + r * stride_; }
  size_t stride() const { return stride_; }

 private:
  const DType from_;
  const DType to_;
  const int32_t head_dim_;
  const size_t stride_;
  std::vector<std::byte> rows_;  // columns from head_dim on stay zero
  std::vector<float> wide_;
};

// 32 features by 32 bf16 columns, to [2 halves][16 pairs][16 columns][2]. Stores bypass the caches:
// nobody reads the weights back before they are evicted.
void InterleaveStep(const std::byte* rows, size_t stride, std::byte* out) {
  for (int32_t pair = 0; pair < kBlock / 2; ++pair) {
    const std::byte* even = rows + 2 * pair * stride;
    for (int32_t group = 0; group < 4; ++group) {  // of eight columns
      const auto a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + group * 16));
      const auto b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + stride + group * 16));
      auto* to =
          reinterpret_cast<__m128i*>(out + (group / 2) * 1024 + pair * 64 + (group % 2) * 32);
      _mm_stream_si128(to, _mm_unpacklo_epi16(a, b));
      _mm_stream_si128(to + 1, _mm_unpackhi_epi16(a, b));
    }
  }
}

void CopyStep(const std::byte* rows, size_t stride, std::byte* out) {
  for (int32_t k = 0; k < kBlock; ++k) {
    std::memcpy(out + k * kBlock * sizeof(float), rows + k * stride, kBlock * sizeof(float));
  }
}

}  // namespace

bool PackHead(const std::byte* weight, DType dtype, int32_t segments, int32_t source_dim,
              int32_t head_dim, const Blocking& blocking, std::byte* out) {
  const bool bf16 = blocking.element_bytes == 2;
  const int64_t column_bytes = int64_t{segments} * blocking.segment_bytes();
  const size_t row_bytes = head_dim * tensor::ByteSize(dtype);
  const bool direct = bf16 && dtype == DType::kBf16 && head_dim % kBlock == 0;
  StepRows padded(dtype, bf16 ? DType::kBf16 : DType::kF32, head_dim, blocking.padded_dim());
  bool finite = true;
  for (int32_t s = 0; s < segments; ++s) {
    for (int32_t k = 0; k < blocking.head_steps; ++k, out += blocking.step_bytes()) {
      const int32_t rows = std::min(kBlock, source_dim - k * kBlock);
      finite &= AllFinite(dtype, weight, size_t(rows) * head_dim);
      const std::byte* step = weight;
      size_t stride = row_bytes;
      if (!direct || rows < kBlock) {
        padded.Fill(weight, rows);
        step = padded.row(0);
        stride = padded.stride();
      }
      for (int32_t column = 0; column < blocking.head_columns; ++column) {
        const std::byte* from = step + column * kBlock * blocking.element_bytes;
        (bf16 ? InterleaveStep : CopyStep)(from, stride, out + column * column_bytes);
      }
      weight += rows * row_bytes;
    }
  }
  _mm_sfence();
  return finite;
}

}  // namespace kvbridge::device::cpu
