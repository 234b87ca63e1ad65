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
//   apply:  x' = x cos - y sin            strip:  x = x' strip_cos + y' strip_sin
//           y' = x sin + y cos                    y = y' strip_cos - x' strip_sin
//
// cos and sin carry the attention factor; strip_cos and strip_sin are they, divided by the
// determinant cos^2 + sin^2 of the entries as stored. The transposed table alone returns
// factor^2 * k (1.297 k for YaRN x4), and rounding moves the determinant from factor^2 by up to
// 1e-7 more.
struct RopeRow {
  const float* cos;
  const float* sin;
  const float* strip_cos;
  const float* strip_sin;
  int32_t half;  // rotary_dim / 2; dimensions from 2 * half on are never touched
  Pairing pairing;
};

// Rotates, and un-rotates, `heads` rows of `head_dim` floats lying one after the other, in place.
// strip(apply(k)) equals k to 2 ulp of FP32 relative to the norm of each pair (largest seen in 4e7
// random pairs: 1.99).
// Thread contract: pure functions.
void ApplyRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim);
void StripRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim);

}  // namespace kvbridge::rope
