// What a kernel needs to rotate the heads of one token. Plain data and out-of-line functions only,
// so that sources compiled for other instruction sets may include it without emitting shared inline
// code.
#pragma once

#include <cstdint>

namespace kvbridge::rope {

// kHalf pairs dimension i with i + rotary_dim/2 ("neox", rotate_half); kInterleaved pairs 2i with
// 2i+1.
enum class Pairing : uint8_t { kHalf, kInterleaved };

// One token's angles: pair i turns by angle_i = position * inv_freq[i]. The arrays are FP32,
// [half], unaligned, borrowed from a RopeTable.
//
//   apply:  x' = x cos - y sin            strip:  x = (x' cos + y' sin) strip_scale
//           y' = x sin + y cos                    y = (y' cos - x' sin) strip_scale
//
// cos and sin carry the attention factor. strip_scale is 1 / (cos^2 + sin^2) of the entries as they
// are stored: the transposed table alone returns factor^2 * k (1.297 k for YaRN x4), and rounding
// makes cos^2 + sin^2 differ from factor^2 by up to 1e-7 more.
struct RopeRow {
  const float* cos;
  const float* sin;
  const float* strip_scale;
  int32_t half;  // rotary_dim / 2; dimensions from 2 * half on are never touched
  Pairing pairing;
};

// Rotates, and un-rotates, `heads` rows of `head_dim` floats lying one after the other, in place.
// strip(apply(k)) equals k to 2 ulp of FP32 relative to the norm of each pair.
// Thread contract: pure functions.
void ApplyRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim);
void StripRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim);

}  // namespace kvbridge::rope
