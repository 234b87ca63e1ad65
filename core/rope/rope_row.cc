#include "core/rope/rope_row.h"

namespace kvbridge::rope {
namespace {

// The loops are split by pairing and direction so that the half pairing, which nearly every model
// uses, is four contiguous streams that the compiler vectorises.

void ApplyHalf(const RopeRow& row, float* head) {
  float* __restrict lo = head;
  float* __restrict hi = head + row.half;
  const float* __restrict cos = row.cos;
  const float* __restrict sin = row.sin;
  for (int32_t i = 0; i < row.half; ++i) {
    const float x = lo[i], y = hi[i];
    lo[i] = x * cos[i] - y * sin[i];
    hi[i] = x * sin[i] + y * cos[i];
  }
}

void StripHalf(const RopeRow& row, float* head) {
  float* __restrict lo = head;
  float* __restrict hi = head + row.half;
  const float* __restrict cos = row.cos;
  const float* __restrict sin = row.sin;
  const float* __restrict scale = row.strip_scale;
  for (int32_t i = 0; i < row.half; ++i) {
    const float x = lo[i], y = hi[i];
    lo[i] = (x * cos[i] + y * sin[i]) * scale[i];
    hi[i] = (y * cos[i] - x * sin[i]) * scale[i];
  }
}

void ApplyInterleaved(const RopeRow& row, float* __restrict head) {
  for (int32_t i = 0; i < row.half; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1];
    head[2 * i] = x * row.cos[i] - y * row.sin[i];
    head[2 * i + 1] = x * row.sin[i] + y * row.cos[i];
  }
}

void StripInterleaved(const RopeRow& row, float* __restrict head) {
  for (int32_t i = 0; i < row.half; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1];
    head[2 * i] = (x * row.cos[i] + y * row.sin[i]) * row.strip_scale[i];
    head[2 * i + 1] = (y * row.cos[i] - x * row.sin[i]) * row.strip_scale[i];
  }
}

}  // namespace

void ApplyRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim) {
  for (int32_t h = 0; h < heads; ++h, rows += head_dim) {
    row.pairing == Pairing::kHalf ? ApplyHalf(row, rows) : ApplyInterleaved(row, rows);
  }
}

void StripRope(const RopeRow& row, float* rows, int32_t heads, int32_t head_dim) {
  for (int32_t h = 0; h < heads; ++h, rows += head_dim) {
    row.pairing == Pairing::kHalf ? StripHalf(row, rows) : StripInterleaved(row, rows);
  }
}

}  // namespace kvbridge::rope
