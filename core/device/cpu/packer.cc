// Weights arrive row by row of features; the kernels want pairs of features side by side. A pass
// over the bytes costs about what reading and writing them costs.
#include "core/device/cpu/packer.h"

#include <algorithm>
#include <cstring>

#include <emmintrin.h>

#include "core/tensor/convert.h"

namespace kvbridge::device::cpu {
using tensor::DType;

// Rows of one step, converted and padded with zeros: [32 features][padded columns].
class StepRows {
 public:
  void Fill(DType from, DType to, const std::byte* weight, int32_t rows, int32_t columns) {
    const size_t source_stride = columns * tensor::ByteSize(from);
    stride_ = CeilDiv(columns, kBlock) * kBlock * tensor::ByteSize(to);
    rows_.assign(kBlock * stride_, std::byte{});
    wide_.resize(columns);
    for (int32_t r = 0; r < rows; ++r, weight += source_stride) {
      std::byte* row = rows_.data() + r * stride_;
      if (from == to) {
        std::memcpy(row, weight, source_stride);
      } else {
        tensor::DecodeRow(from, weight, 1, wide_.data(), columns);
        tensor::EncodeRow(to, wide_.data(), 1, row, columns);
      }
    }
  }

  const std::byte* data() const { return rows_.data(); }
  size_t stride() const { return stride_; }

 private:
  size_t stride_ = 0;
  std::vector<std::byte> rows_;
  std::vector<float> wide_;
};

namespace {

// Of floats.
bool AllFinite(const std::byte* data, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, data + 4 * i, 4);
    largest = std::max(largest, bits & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

// 32 features by 32 bf16 columns, to [2 halves][16 pairs][16 columns][2]. Stores bypass the caches:
// nobody reads the weights back before they are evicted. Returns, lane by lane, the larger of
// `largest` and the magnitudes' bits.
__m128i InterleaveStep(const std::byte* rows, size_t stride, std::byte* out, __m128i largest) {
  const __m128i magnitude = _mm_set1_epi16(0x7fff);
  for (int32_t pair = 0; pair < kBlock / 2; ++pair) {
    const std::byte* even = rows + 2 * pair * stride;
    for (int32_t group = 0; group < 4; ++group) {  // of eight columns
      const auto a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + group * 16));
      const auto b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(even + stride + group * 16));
      largest = _mm_max_epi16(
          largest, _mm_max_epi16(_mm_and_si128(a, magnitude), _mm_and_si128(b, magnitude)));
      auto* to =
          reinterpret_cast<__m128i*>(out + (group / 2) * 1024 + pair * 64 + (group % 2) * 32);
      _mm_stream_si128(to, _mm_unpacklo_epi16(a, b));
      _mm_stream_si128(to + 1, _mm_unpackhi_epi16(a, b));
    }
  }
  return largest;
}

// Whether all eight magnitudes are finite bf16.
bool Finite(__m128i magnitudes) {
  return _mm_movemask_epi8(_mm_cmpgt_epi16(magnitudes, _mm_set1_epi16(0x7f7f))) == 0;
}

void CopyStep(const std::byte* rows, size_t stride, std::byte* out) {
  for (int32_t k = 0; k < kBlock; ++k) {
    std::memcpy(out + k * kBlock * sizeof(float), rows + k * stride, kBlock * sizeof(float));
  }
}

int64_t RowBytes(const Packer::Tensor& tensor) {
  return tensor.columns * static_cast<int64_t>(tensor::ByteSize(tensor.dtype));
}

// A tensor's bytes as steps in order: head by head, segment by segment.
int64_t StepAt(const Packer::Tensor& tensor, int64_t offset) {
  const int64_t row = offset / RowBytes(tensor);
  return row / tensor.rows * CeilDiv(tensor.rows, kBlock) + row % tensor.rows / kBlock;
}

}  // namespace

void Packer::Add(const Tensor& tensor) {
  tensors_.push_back(tensor);
  steps_ += tensor.steps();
}

void Packer::PackStepsEndingIn(std::span<const std::byte> piece) {
  for (size_t i = 0; i < tensors_.size(); ++i) PackStepsEndingIn(piece, i);
}

void Packer::PackStepsEndingIn(std::span<const std::byte> piece, size_t index) {
  const Tensor& tensor = tensors_[index];
  const std::byte* const end = tensor.from.data() + tensor.from.size();
  const std::byte* const piece_end = piece.data() + piece.size();
  if (piece.data() >= end || piece_end <= tensor.from.data()) return;
  const int64_t begin = std::max<int64_t>(0, piece.data() - tensor.from.data());
  const int64_t first = StepAt(tensor, begin);
  // The step that holds the byte behind the piece ends elsewhere.
  const int64_t stop =
      piece_end >= end ? tensor.steps() : StepAt(tensor, piece_end - tensor.from.data());
  StepRows rows;
  for (int64_t step = first; step < stop; ++step) {
    if (PackStep(tensor, step, rows)) continue;
    const int64_t head = step / (tensor.steps() / tensor.heads);
    const int64_t bad = (static_cast<int64_t>(index) << 32) + head;
    int64_t seen = first_bad_.load();
    while (bad < seen && !first_bad_.compare_exchange_weak(seen, bad)) {
    }
  }
  _mm_sfence();
  packed_ += stop - first;
}

void Packer::PackAll(base::WorkerPool& workers) {
  std::vector<Place> units;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (int32_t h = 0; h < tensors_[i].heads; ++h) units.push_back({i, h});
  }
  workers.ParallelFor(static_cast<int64_t>(units.size()), [&](int64_t i) {
    const auto& [index, head] = units[i];
    const std::span<const std::byte> all = tensors_[index].from;
    const size_t bytes = all.size() / tensors_[index].heads;
    PackStepsEndingIn(all.subspan(head * bytes, bytes), index);
  });
}

bool Packer::PackStep(const Tensor& tensor, int64_t step, StepRows& padded) const {
  const int64_t step_bytes = int64_t{kBlockElements} * element_bytes_;
  const int32_t segment_steps = CeilDiv(tensor.rows, kBlock);
  const int64_t head_steps = int64_t{tensor.segments} * segment_steps;
  const int32_t columns = CeilDiv(tensor.columns, kBlock);
  const int32_t first = static_cast<int32_t>(step % segment_steps) * kBlock;
  const int32_t rows = std::min(kBlock, tensor.rows - first);
  const std::byte* from =
      tensor.from.data() + (step / segment_steps * tensor.rows + first) * RowBytes(tensor);
  std::byte* out =
      tensor.to + (step / head_steps * columns * head_steps + step % head_steps) * step_bytes;
  const int64_t column_bytes = head_steps * step_bytes;
  const bool bf16 = element_bytes_ == 2;
  size_t stride = RowBytes(tensor);
  // What is interleaved is looked at there.
  bool finite = tensor.dtype == DType::kBf16 || AllFinite(from, size_t(rows) * tensor.columns);
  if (!bf16 || tensor.dtype != DType::kBf16 || tensor.columns % kBlock != 0 || rows < kBlock) {
    padded.Fill(tensor.dtype, bf16 ? DType::kBf16 : DType::kF32, from, rows, tensor.columns);
    from = padded.data();
    stride = padded.stride();
    finite = finite && (bf16 || AllFinite(from, size_t(rows) * columns * kBlock));
  }
  __m128i largest = _mm_setzero_si128();
  for (int32_t column = 0; column < columns; ++column) {
    const std::byte* block = from + column * kBlock * element_bytes_;
    if (bf16) {
      largest = InterleaveStep(block, stride, out + column * column_bytes, largest);
    } else {
      CopyStep(block, stride, out + column * column_bytes);
    }
  }
  return finite && Finite(largest);
}

std::optional<Packer::Place> Packer::first_non_finite() const {
  if (first_bad_ == INT64_MAX) return std::nullopt;
  return Place{static_cast<size_t>(first_bad_ >> 32), static_cast<int32_t>(first_bad_)};
}

}  // namespace kvbridge::device::cpu
