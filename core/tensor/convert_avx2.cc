// Compiled with -mavx2 -mf16c, so nothing inline from elsewhere may be used here: the linker could
// keep this file's copy of a shared function and run it on a processor without AVX2.
#include "core/tensor/convert_avx2.h"

#include <immintrin.h>

namespace kvbridge::tensor::internal {
namespace {

constexpr int kAbsMask = 0x7fffffff;
constexpr int kInfinity = 0x7f800000;

__m256i Set(int value) { return _mm256_set1_epi32(value); }

__m256i LoadBits(const float* src) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
}

// Eight 32-bit lanes, each below 2^16, to eight 16-bit ones.
__m128i Narrow16(__m256i v) {
  return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

// bits >> shift, rounded to nearest even.
template <int kShift>
__m256i RoundShift(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, kShift), Set(1));
  const __m256i bias = _mm256_add_epi32(odd, Set((1 << (kShift - 1)) - 1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, bias), kShift);
}

// Lanes of all ones add one each.
class LaneCounter {
 public:
  void Add(__m256i mask) { lanes_ = _mm256_sub_epi32(lanes_, mask); }
  uint64_t Total() const {
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), lanes_);
    uint64_t total = 0;
    for (uint32_t lane : lanes) total += lane;
    return total;
  }

 private:
  __m256i lanes_ = _mm256_setzero_si256();
};

}  // namespace

void DecodeBf16Avx2(const void* src, float* dst, size_t n) {
  const auto* in = static_cast<const uint16_t*>(src);
  for (size_t i = 0; i < n; i += 8) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(codes), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), bits);
  }
}

void DecodeF16Avx2(const void* src, float* dst, size_t n) {
  const auto* in = static_cast<const uint16_t*>(src);
  for (size_t i = 0; i < n; i += 8) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(codes));
  }
}

// Read as FP16, an E4M3 magnitude is 2^8 too small (exponent bias 15 for 7), subnormals included.
void DecodeF8E4M3Avx2(const void* src, float scale, float* dst, size_t n) {
  const auto* in = static_cast<const uint8_t*>(src);
  const __m256 scales = _mm256_set1_ps(scale);
  const __m128i magnitude_mask = _mm_set1_epi16(0x7f);
  for (size_t i = 0; i < n; i += 8) {
    const __m128i codes =
        _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i)));
    const __m128i magnitude = _mm_and_si128(codes, magnitude_mask);
    const __m128i sign = _mm_slli_epi16(_mm_andnot_si128(magnitude_mask, codes), 8);
    const __m128i nan = _mm_cmpeq_epi16(magnitude, magnitude_mask);
    const __m128i finite = _mm_slli_epi16(magnitude, 7);
    const __m128i half = _mm_or_si128(sign, _mm_blendv_epi8(finite, _mm_set1_epi16(0x7e00), nan));
    const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
    _mm256_storeu_ps(dst + i, _mm256_mul_ps(scales, value));
  }
}

uint64_t EncodeBf16Avx2(const float* src, void* dst, size_t n) {
  auto* out = static_cast<uint16_t*>(dst);
  LaneCounter saturated;
  for (size_t i = 0; i < n; i += 8) {
    const __m256i bits = LoadBits(src + i);
    const __m256i abs = _mm256_and_si256(bits, Set(kAbsMask));
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i nan = _mm256_cmpgt_epi32(abs, Set(kInfinity));
    const __m256i beyond = _mm256_and_si256(_mm256_cmpgt_epi32(abs, Set(0x7f7f7fff)),
                                            _mm256_cmpgt_epi32(Set(kInfinity), abs));
    const __m256i largest = _mm256_or_si256(_mm256_and_si256(high, Set(0x8000)), Set(0x7f7f));
    __m256i codes = _mm256_blendv_epi8(RoundShift<16>(bits), largest, beyond);
    codes = _mm256_blendv_epi8(codes, _mm256_or_si256(high, Set(0x40)), nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), Narrow16(codes));
    saturated.Add(beyond);
  }
  return saturated.Total();
}

uint64_t EncodeF16Avx2(const float* src, void* dst, size_t n) {
  auto* out = static_cast<uint16_t*>(dst);
  LaneCounter saturated;
  const __m256i largest = Set(0x477fe000);  // 65504
  for (size_t i = 0; i < n; i += 8) {
    const __m256i bits = LoadBits(src + i);
    const __m256i abs = _mm256_and_si256(bits, Set(kAbsMask));
    const __m256i beyond = _mm256_and_si256(_mm256_cmpgt_epi32(abs, Set(0x477fefff)),
                                            _mm256_cmpgt_epi32(Set(kInfinity), abs));
    const __m256i sign = _mm256_andnot_si256(Set(kAbsMask), bits);
    const __m256i value = _mm256_blendv_epi8(bits, _mm256_or_si256(sign, largest), beyond);
    const __m128i codes = _mm256_cvtps_ph(_mm256_castsi256_ps(value), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), codes);
    saturated.Add(beyond);
  }
  return saturated.Total();
}

uint64_t EncodeF8E4M3Avx2(const float* src, float scale, void* dst, size_t n) {
  auto* out = static_cast<uint8_t*>(dst);
  LaneCounter saturated;
  const __m256 scales = _mm256_set1_ps(scale);
  // Adding 2^14, whose last bit is worth 2^-9, rounds a magnitude to whole E4M3 subnormals.
  const __m256 magic = _mm256_set1_ps(16384.0f);
  for (size_t i = 0; i < n; i += 8) {
    const __m256i bits = _mm256_castps_si256(_mm256_div_ps(_mm256_loadu_ps(src + i), scales));
    const __m256i abs = _mm256_and_si256(bits, Set(kAbsMask));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), Set(0x80));
    const __m256i normal = _mm256_sub_epi32(RoundShift<20>(abs), Set((127 - 7) << 3));
    const __m256i subnormal =
        _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(abs), magic)),
                         _mm256_castps_si256(magic));
    const __m256i tiny = _mm256_cmpgt_epi32(Set((127 - 6) << 23), abs);
    const __m256i nan = _mm256_cmpgt_epi32(abs, Set(kInfinity));
    __m256i codes = _mm256_blendv_epi8(normal, subnormal, tiny);
    const __m256i beyond = _mm256_andnot_si256(nan, _mm256_cmpgt_epi32(codes, Set(0x7e)));
    codes = _mm256_blendv_epi8(codes, Set(0x7e), beyond);
    codes = _mm256_blendv_epi8(codes, Set(0x7f), nan);
    const __m128i words = Narrow16(_mm256_or_si256(codes, sign));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), _mm_packus_epi16(words, words));
    saturated.Add(beyond);
  }
  return saturated.Total();
}

}  // namespace kvbridge::tensor::internal
