#include "core/rope/rope_row.h"

namespace kvbridge::rope {
namespace {

// Stripping is applying the inverse angle with its own table, so one loop per pairing serves both.
// `turn` is +1 to rotate by the angle and -1 to rotate back.

// Contiguous streams that the compiler vectorises: nearly every model pairs halves.
void RotateHalves(const float* __restrict cos, const float* __restrict sin, float turn,
                  int32_t half, float* head) {
  float* __restrict lo = head;
  float* __restrict hi = head + half;
  for (int32_t i = 0; i < half; ++i) {
    const float x = lo[i], y = hi[i], s = turn * sin[i];
    lo[i] = x * cos[i] - y * s;
    hi[i] = x * s + y * cos[i];
  }
}

void RotateNeighbours(const float* __restrict cos, const float* __restrict sin, float turn,
                      int32_t half, float* __restrict head) {
  for (int32_t i = 0; i < half; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1], s = turn * sin[i];
    head[2 * i] = x * cos[i] - y * s;
    head[2 * i + 1] = x * s + y * cos[i];
  }
}

void Rotate(const RopeRow& row, const float* cos, const float* sin, float turn, float* rows,
            int32_t heads, int32_t head_dim) {
  const auto rotate = row.pairing == Pairing::kHalf ? RotateHalves : RotateNeighbours;
  for (int32_t h = 0; h < heads; ++h)
    rotate(cos, sin, turn, row.half, rows + int64_t{h} * head_dim);
}

}  // namespace

void ApplyRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim) {
  Rotate(row, row.cos, row.sin, 1, rows, heads, head_dim);
}

void StripRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim) {
  Rotate(row, row.strip_cos, row.strip_sin, -1, rows, heads, head_dim);
}

}  // namespace kvbridge::rope
