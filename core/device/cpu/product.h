// A sum of products over some blocks of tokens and column blocks: what every part of a map is made
// of.
//
// Thread contract: pure functions on the caller's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"

#include "core/device/cpu/kernels.h"

namespace kvbridge::device::cpu {

// One A and its B.
struct Factor {
  // The first step of a segment for a block of the product.
  absl::FunctionRef<const std::byte*(int32_t segment, int32_t block)> a;
  int32_t segments;
  int32_t steps;             // of each segment
  int64_t block_bytes;       // from a segment's block to, mostly, its next
  const std::byte* weights;  // [columns][segments * steps] steps
};

struct Product {
  std::vector<Factor> factors;
  int32_t blocks;
  int32_t columns;
  float* c;  // [blocks][columns] blocks
};

struct Gemm {
  void (*multiply)(const GemmArgs&);
  int64_t step_bytes;
};

// Who wants results: asked about every millisecond, by blocks.
struct Wanted {
  absl::FunctionRef<bool()> any;                    // false ends the product
  absl::FunctionRef<bool(int32_t block)> this_one;  // false leaves the block out from now on
};

// Sums features in ascending order, factor by factor, so that no bit depends on which blocks or
// columns are multiplied together. `finish` gets each block with its results, right after the last
// of them. False: nobody wants them any more.
bool Multiply(const Product& product, const Gemm& gemm, const Wanted& wanted,
              absl::FunctionRef<void(int32_t block, const float* c)> finish);

}  // namespace kvbridge::device::cpu
