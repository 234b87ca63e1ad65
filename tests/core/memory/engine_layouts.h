// How engines lay a paged cache out, and a writer that knows their tensors but nothing of strides.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>

#include "core/memory/pool.h"
#include "core/tensor/convert.h"

namespace kvbridge::memory {

struct PoolShape {
  int32_t layers = 2, pages = 6, slots = 16, heads = 8, dim = 128;

  int64_t Extent(char axis) const {
    switch (axis) {
      case 'L':
        return layers;
      case 'C':
        return 2;
      case 'B':
        return pages;
      case 'S':
        return slots;
      case 'H':
        return heads;
      default:
        return dim;
    }
  }
};

// One tensor holds the axes after "/" and there is one tensor for each of those before it:
// (L)ayer, (C)omponent, (B)lock, (S)lot, (H)ead, (D)im.
struct EngineLayout {
  const char* engine;
  const char* axes;
  // In bytes, at the shape above in bf16, as the engine's tensors say (stride() * itemsize).
  int64_t page_stride, token_stride, head_stride, value_offset, layer_offset;
};

inline constexpr EngineLayout kEngineLayouts[] = {
    {"vLLM FlashAttention NHD, [2, blocks, block, heads, dim]", "L/CBSHD", 32768, 2048, 256, 196608,
     393216},
    {"vLLM FlashAttention HND, [2, blocks, heads, block, dim]", "L/CBHSD", 32768, 256, 4096, 196608,
     393216},
    {"vLLM FlashInfer, [blocks, 2, block, heads, dim]", "L/BCSHD", 65536, 2048, 256, 32768, 393216},
    {"vLLM packed, [blocks, heads, block, 2 * dim]", "L/BHSCD", 65536, 512, 8192, 256, 393216},
    {"SGLang, K and V each [blocks * block, heads, dim]", "LC/BSHD", 32768, 2048, 256, 196608,
     393216},
    {"TensorRT-LLM, [blocks, layers, 2, heads, block, dim]", "/BLCHSD", 131072, 256, 4096, 32768,
     65536},
    {"Hugging Face, K and V each [batch, heads, tokens, dim]", "LC/BHSD", 32768, 256, 4096, 196608,
     393216},
};

// Bytes from one index of `axis` to the next.
inline int64_t StrideOf(const EngineLayout& layout, const PoolShape& shape, char axis) {
  const std::string axes = layout.axes;
  int64_t stride = 2;
  for (size_t i = axes.size(); i-- > 0 && axes[i] != axis;) {
    if (axes[i] != '/') stride *= shape.Extent(axes[i]);
  }
  return stride;
}

// The pool that the engine's adapter registers, all of it in one region.
inline PoolSpec SpecOf(const EngineLayout& layout, const PoolShape& shape,
                       const std::string& region_id) {
  PoolSpec spec;
  spec.model.geometry = {.layers = shape.layers,
                         .kv_heads = shape.heads,
                         .head_dim = shape.dim,
                         .dtype = tensor::DType::kBf16,
                         .attention = {},
                         .head_order = {}};
  spec.tokens_per_page = shape.slots;
  spec.pages = shape.pages;
  for (int32_t plane = 0; plane < 2 * shape.layers; ++plane) {
    const int64_t base =
        plane / 2 * StrideOf(layout, shape, 'L') + plane % 2 * StrideOf(layout, shape, 'C');
    spec.planes.push_back({.region_id = region_id,
                           .base_offset = static_cast<uint64_t>(base),
                           .page_stride = StrideOf(layout, shape, 'B'),
                           .token_stride = StrideOf(layout, shape, 'S'),
                           .head_stride = StrideOf(layout, shape, 'H'),
                           .scales = {}});
  }
  return spec;
}

// Distinct for neighbours along every axis, and exact in bf16.
inline float ElementOf(int64_t layer, int64_t component, int64_t page, int64_t slot, int64_t head,
                       int64_t dim) {
  return static_cast<float>(
      (layer * 131 + component * 71 + page * 37 + slot * 17 + head * 7 + dim) % 251);
}

// Fills the tensors one after another, element by element in memory order.
inline void WriteAsEngine(const EngineLayout& layout, const PoolShape& shape,
                          std::span<std::byte> memory) {
  std::string axes;
  for (const char* axis = layout.axes; *axis != '\0'; ++axis) {
    if (*axis != '/') axes += *axis;
  }
  int64_t at[128] = {};
  size_t offset = 0;
  const std::function<void(size_t)> write = [&](size_t depth) {
    if (depth < axes.size()) {
      for (int64_t i = 0; i < shape.Extent(axes[depth]); ++i) {
        at[static_cast<size_t>(axes[depth])] = i;
        write(depth + 1);
      }
      return;
    }
    const uint16_t bits =
        tensor::F32ToBf16(ElementOf(at['L'], at['C'], at['B'], at['S'], at['H'], at['D']), nullptr);
    std::memcpy(memory.data() + offset, &bits, sizeof(bits));
    offset += sizeof(bits);
  };
  write(0);
}

}  // namespace kvbridge::memory
