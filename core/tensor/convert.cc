#include "core/tensor/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/tensor/convert_avx2.h"

namespace kvbridge::tensor {
namespace {

constexpr uint32_t kSign = 0x80000000;
constexpr uint32_t kInfinity = 0x7f800000;
constexpr uint32_t kQuiet = 0x00400000;  // F32's quiet-NaN bit
constexpr int kF32Mantissa = 23;
constexpr int kF32Bias = 127;

uint32_t Magnitude(float value) { return std::bit_cast<uint32_t>(value) & ~kSign; }
uint32_t SignBit(float value) { return std::bit_cast<uint32_t>(value) & kSign; }

void Report(bool* saturated) {
  if (saturated != nullptr) *saturated = true;
}

// A binary format with a sign, an exponent of bias kBias and kMantissa bits, narrower than F32.
// Codes are magnitudes, without the sign; infinities and NaNs are the callers' business.
template <int kMantissa, int kBias>
struct Narrow {
  static constexpr int kShift = kF32Mantissa - kMantissa;
  static constexpr int kRebias = kF32Bias - kBias;
  // The F32 whose last bit is worth the smallest subnormal: adding it rounds to whole subnormals.
  static constexpr uint32_t kMagic = uint32_t(kRebias + 1 + kShift) << kF32Mantissa;

  // To nearest even, as if the exponent had no upper end.
  static uint32_t Round(uint32_t f32_magnitude) {
    if (f32_magnitude < uint32_t(kRebias + 1) << kF32Mantissa) {
      const float sum = std::bit_cast<float>(f32_magnitude) + std::bit_cast<float>(kMagic);
      return std::bit_cast<uint32_t>(sum) - kMagic;
    }
    const uint32_t odd = (f32_magnitude >> kShift) & 1;
    const uint32_t rounded = f32_magnitude + odd + ((1u << (kShift - 1)) - 1);
    return (rounded >> kShift) - (uint32_t(kRebias) << kMantissa);
  }

  static uint32_t Widen(uint32_t code) {
    if (code >> kMantissa != 0) return (code << kShift) + (uint32_t(kRebias) << kF32Mantissa);
    const float sum = std::bit_cast<float>(kMagic + code) - std::bit_cast<float>(kMagic);
    return std::bit_cast<uint32_t>(sum);
  }
};

using Half = Narrow<10, 15>;
using E4M3 = Narrow<3, 7>;

bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

// The rows' elements that whole vectors cover; the rest goes through the scalar functions.
size_t VectorPart(size_t n) { return HasAvx2() ? n - n % 8 : 0; }

template <typename Code>
Code Load(const std::byte* src, size_t i) {
  Code code;
  std::memcpy(&code, src + i * sizeof(Code), sizeof(Code));
  return code;
}

template <typename Code>
void Store(std::byte* dst, size_t i, Code code) {
  std::memcpy(dst + i * sizeof(Code), &code, sizeof(Code));
}

}  // namespace

float Bf16ToF32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t F32ToBf16(float value, bool* saturated) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = Magnitude(value);
  if (magnitude > kInfinity) return (bits | kQuiet) >> 16;
  if (magnitude < kInfinity && magnitude >= 0x7f7f8000) {
    Report(saturated);
    return SignBit(value) >> 16 | 0x7f7f;
  }
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

float F16ToF32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t code = bits & 0x7fff;
  if (code < 0x7c00) return std::bit_cast<float>(sign | Half::Widen(code));
  const uint32_t payload = (code & 0x3ff) << Half::kShift;
  return std::bit_cast<float>(sign | kInfinity | payload | (payload != 0 ? kQuiet : 0));
}

uint16_t F32ToF16(float value, bool* saturated) {
  const uint32_t sign = SignBit(value) >> 16;
  const uint32_t magnitude = Magnitude(value);
  if (magnitude > kInfinity) return sign | 0x7e00 | (magnitude >> Half::kShift & 0x3ff);
  if (magnitude == kInfinity) return sign | 0x7c00;
  const uint32_t code = Half::Round(magnitude);
  if (code < 0x7c00) return sign | code;
  Report(saturated);
  return sign | 0x7bff;
}

float F8E4M3ToF32(uint8_t bits) {
  const uint32_t sign = uint32_t{bits & 0x80u} << 24;
  const uint32_t code = bits & 0x7f;
  return std::bit_cast<float>(sign | (code == 0x7f ? kInfinity | kQuiet : E4M3::Widen(code)));
}

uint8_t F32ToF8E4M3(float value, bool* saturated) {
  const uint32_t sign = SignBit(value) >> 24;
  const uint32_t magnitude = Magnitude(value);
  if (magnitude > kInfinity) return sign | 0x7f;
  const uint32_t code = E4M3::Round(magnitude);
  if (code <= 0x7e) return sign | code;
  Report(saturated);
  return sign | 0x7e;
}

void DecodeRow(DType dtype, const std::byte* src, float scale, float* dst, size_t n) {
  const size_t vectors = VectorPart(n);
  switch (dtype) {
    case DType::kF32:
      std::copy_n(src, n * sizeof(float), reinterpret_cast<std::byte*>(dst));  // n may be 0
      return;
    case DType::kBf16:
      if (vectors > 0) internal::DecodeBf16Avx2(src, dst, vectors);
      for (size_t i = vectors; i < n; ++i) dst[i] = Bf16ToF32(Load<uint16_t>(src, i));
      return;
    case DType::kF16:
      if (vectors > 0) internal::DecodeF16Avx2(src, dst, vectors);
      for (size_t i = vectors; i < n; ++i) dst[i] = F16ToF32(Load<uint16_t>(src, i));
      return;
    case DType::kF8E4M3:
      if (vectors > 0) internal::DecodeF8E4M3Avx2(src, scale, dst, vectors);
      for (size_t i = vectors; i < n; ++i) dst[i] = scale * F8E4M3ToF32(Load<uint8_t>(src, i));
      return;
  }
}

uint64_t EncodeRow(DType dtype, const float* src, float scale, std::byte* dst, size_t n) {
  const size_t vectors = VectorPart(n);
  uint64_t count = 0;
  const auto encode_rest = [&](auto encode) {
    for (size_t i = vectors; i < n; ++i) {
      bool saturated = false;
      Store(dst, i, encode(src[i], &saturated));
      count += saturated;
    }
  };
  switch (dtype) {
    case DType::kF32:
      std::copy_n(reinterpret_cast<const std::byte*>(src), n * sizeof(float), dst);  // n may be 0
      break;
    case DType::kBf16:
      if (vectors > 0) count = internal::EncodeBf16Avx2(src, dst, vectors);
      encode_rest(F32ToBf16);
      break;
    case DType::kF16:
      if (vectors > 0) count = internal::EncodeF16Avx2(src, dst, vectors);
      encode_rest(F32ToF16);
      break;
    case DType::kF8E4M3:
      if (vectors > 0) count = internal::EncodeF8E4M3Avx2(src, scale, dst, vectors);
      encode_rest([&](float x, bool* saturated) { return F32ToF8E4M3(x / scale, saturated); });
      break;
  }
  return count;
}

}  // namespace kvbridge::tensor
