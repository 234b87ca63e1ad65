// How a pair of geometries is cut into the kernels' blocks (kernels.h). Not for the sources that
// are compiled for other instructions.
#pragma once

#include <cstdint>

#include "core/device/cpu/kernels.h"

namespace kvbridge::device::cpu {

constexpr int32_t CeilDiv(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

// Sizes of one precision and pair of geometries.
struct Blocking {
  int32_t element_bytes;  // of A and B
  int32_t source_heads;
  int32_t head_steps;  // of one source head
  int32_t target_heads;
  int32_t head_columns;  // column blocks of one target head

  int64_t step_bytes() const { return int64_t{kBlockElements} * element_bytes; }
  int64_t segment_bytes() const { return head_steps * step_bytes(); }
  int32_t padded_dim() const { return head_columns * kBlock; }
};

}  // namespace kvbridge::device::cpu
