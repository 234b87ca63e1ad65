// Row conversions for processors with AVX2 and F16C: bit for bit what convert.h's scalar functions
// give. Private to core/tensor. n is a multiple of 8; encoders return how many elements saturated.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvbridge::tensor::internal {

void DecodeBf16Avx2(const void* src, float* dst, size_t n);
void DecodeF16Avx2(const void* src, float* dst, size_t n);
void DecodeF8E4M3Avx2(const void* src, float scale, float* dst, size_t n);

uint64_t EncodeBf16Avx2(const float* src, void* dst, size_t n);
uint64_t EncodeF16Avx2(const float* src, void* dst, size_t n);
uint64_t EncodeF8E4M3Avx2(const float* src, float scale, void* dst, size_t n);

}  // namespace kvbridge::tensor::internal
