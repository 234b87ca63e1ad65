// The network of a map: its hidden layers laid out for the kernels, and running them.
//
// Activations are rounded to the precision's element, as features are, and lie as steps of A: what
// reads them multiplies them as it multiplies features.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device/cpu/kernels.h"
#include "core/device/cpu/product.h"

namespace kvbridge::device::cpu {

// Of K or V of one target layer.
struct ResidentNetwork {
  struct Layer {
    const std::byte* weights;  // [columns][steps of its inputs] steps
    const float* bias;         // [columns * 32], zero past the width
    int32_t columns;           // column blocks: the width's steps
  };
  std::vector<Layer> layers;  // hidden ones; empty: there is no network
  const std::byte* out;       // [target_heads][head_columns][last width's steps] steps

  // Column blocks of all hidden layers together.
  int32_t columns() const;
};

// Room for one worker.
struct NetworkScratch {
  float* c;  // as many column blocks as `columns`, for each block of tokens
  int32_t columns;
  std::byte* activations;  // [layers][blocks][columns of the layer] steps
};

// Runs the hidden layers over `blocks` blocks of `features`, whose `weights` it sets. Returns the
// activations of the last layer, [blocks][columns] steps; null: nobody wants them any more.
const std::byte* Activate(const ResidentNetwork& network, const Factor& features, int32_t blocks,
                          const NetworkScratch& scratch, const KernelSet& kernels, const Gemm& gemm,
                          const Wanted& wanted);

}  // namespace kvbridge::device::cpu
