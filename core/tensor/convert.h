// Conversion of rows between storage types and FP32.
//
// Rounding is to nearest, ties to even; subnormals are kept. NaN stays NaN in every type. A value
// that rounds beyond the target's largest finite one becomes +-largest and is counted as saturated;
// the caller's policy turns a count above zero into a fallback or lets it pass (B19-B21 of the
// field's faults: silent inf, silent wrap, wrong ties). So 65519 -> 65504 in f16 and 464 (the tie
// between 448 and the absent 480) -> 448 in e4m3 are plain rounding; 65520, 465, and FLT_MAX in
// bf16 are counted. Infinity stays infinity, uncounted, where the type has one; in e4m3 it becomes
// +-448 and is counted.
//
// Scales follow the engines' convention: value = scale * code, so decode multiplies and encode
// divides. FP8 rows need scale > 0 and finite; other types have no scale and ignore it.
//
// Thread contract: pure functions. Buffers need no alignment. src and dst do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor/dtype.h"

namespace kvbridge::tensor {

// `saturated`, when given, is set to true on saturation and left alone otherwise.
float Bf16ToF32(uint16_t bits);
uint16_t F32ToBf16(float value, bool* saturated = nullptr);
float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value, bool* saturated = nullptr);
float F8E4M3ToF32(uint8_t bits);
uint8_t F32ToF8E4M3(float value, bool* saturated = nullptr);

// dst[i] = scale * decode(src[i]), i < n. The same bits on every processor.
void DecodeRow(DType dtype, const std::byte* src, float scale, float* dst, size_t n);

// dst[i] = encode(src[i] / scale); returns how many elements saturated.
uint64_t EncodeRow(DType dtype, const float* src, float scale, std::byte* dst, size_t n);

}  // namespace kvbridge::tensor
