#include "core/device/cpu/network.h"

#include <algorithm>

namespace kvbridge::device::cpu {
namespace {

struct Context {
  int32_t blocks;
  const NetworkScratch& scratch;
  const KernelSet& kernels;
  const Gemm& gemm;
  const Wanted& wanted;
};

// `to`: [blocks][columns of the layer] steps.
bool RunLayer(const ResidentNetwork::Layer& layer, Factor inputs, const Context& context,
              std::byte* to) {
  const int64_t step_bytes = context.gemm.step_bytes;
  const int64_t column_bytes = int64_t{inputs.segments} * inputs.steps * step_bytes;
  for (int32_t first = 0; first < layer.columns; first += context.scratch.columns) {
    inputs.weights = layer.weights + first * column_bytes;
    const Product product = {.factors = {inputs},
                             .blocks = context.blocks,
                             .columns = std::min(context.scratch.columns, layer.columns - first),
                             .c = context.scratch.c};
    const auto store = [&](int32_t block, const float* c) {
      std::byte* row = to + (int64_t{block} * layer.columns + first) * step_bytes;
      for (int32_t column = 0; column < product.columns; ++column) {
        context.kernels.relu({.c = c + int64_t{column} * kBlockElements,
                              .bias = layer.bias + (first + column) * kBlock,
                              .a = reinterpret_cast<char*>(row + column * step_bytes),
                              .bf16 = step_bytes == 2 * kBlockElements});
      }
    };
    if (!Multiply(product, context.gemm, context.wanted, store)) return false;
  }
  return true;
}

}  // namespace

int32_t ResidentNetwork::columns() const {
  int32_t total = 0;
  for (const Layer& layer : layers) total += layer.columns;
  return total;
}

const std::byte* Activate(const ResidentNetwork& network, const Factor& features, int32_t blocks,
                          const NetworkScratch& scratch, const KernelSet& kernels, const Gemm& gemm,
                          const Wanted& wanted) {
  const Context context = {blocks, scratch, kernels, gemm, wanted};
  const std::byte* from = nullptr;
  std::byte* to = scratch.activations;
  int64_t block_bytes = 0;
  const auto activation = [&](int32_t segment, int32_t block) {
    return from + block * block_bytes + segment * gemm.step_bytes;
  };
  for (size_t i = 0; i < network.layers.size(); ++i) {
    const Factor inputs = i == 0 ? features
                                 : Factor{.a = activation,
                                          .segments = network.layers[i - 1].columns,
                                          .steps = 1,
                                          .block_bytes = block_bytes,
                                          .weights = nullptr};
    if (!RunLayer(network.layers[i], inputs, context, to)) return nullptr;
    from = to;
    block_bytes = network.layers[i].columns * gemm.step_bytes;
    to += blocks * block_bytes;
  }
  return from;
}

}  // namespace kvbridge::device::cpu
