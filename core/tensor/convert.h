// Conversion of rows between storage types and FP32.
//
// Rounding is to nearest, ties to even. NaN stays NaN in every type that has one. A finite value
// beyond the largest finite one of the target type, and an infinity where the type has none,
// saturates to ±largest and is counted; the caller's policy turns a count above zero into a fallback
// or lets it pass (B19-B21 of the field's faults: silent inf, silent wrap, wrong ties).
//
// Scales follow the engines' convention: value = scale * code, so decode multiplies and encode
// divides. FP8 rows need scale > 0 and finite; other types are called with 1.
//
// Thread contract: pure functions. Buffers need no alignment. src and dst do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor/dtype.h"

namespace kvbridge::tensor {

float Bf16ToF32(uint16_t bits);
uint16_t F32ToBf16(float value);
float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value, bool* saturated);
float F8E4M3ToF32(uint8_t bits);
uint8_t F32ToF8E4M3(float value, bool* saturated);

// dst[i] = scale * decode(src[i]), i < n.
void DecodeRow(DType dtype, const std::byte* src, float scale, float* dst, size_t n);

// dst[i] = encode(src[i] / scale); returns how many elements saturated.
uint64_t EncodeRow(DType dtype, const float* src, float scale, std::byte* dst, size_t n);

}  // namespace kvbridge::tensor
