// Where a cache lies in memory, described by byte strides. Engines have changed their physical
// layouts four times; strides describe them all, so there is no layout enum, and heads == tokens or
// pages == 2 cannot change the meaning.
//
// Element (layer l, component c, token t, head h, dim d) is at
//   base(l,c) + page(t) * page_stride + slot(t) * token_stride + h * head_stride + d *
//   ByteSize(dtype)
// with page(t) = pages[t / tokens_per_page] and slot(t) = t % tokens_per_page. A contiguous cache
// has tokens_per_page == 0: page(t) = 0 and slot(t) = t. head_dim is always contiguous.
//
// A view borrows: whoever made it keeps the memory and the arrays alive while it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/tensor/dtype.h"

namespace kvbridge::kv {

enum class Component : uint8_t { kKey = 0, kValue = 1 };
inline constexpr Component kComponents[] = {Component::kKey, Component::kValue};
// "key", "value": for messages.
constexpr absl::string_view Name(Component c) { return c == Component::kKey ? "key" : "value"; }

// Half open, in tokens of the selection (0 = the first selected token, whatever its position).
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

struct LayerRange {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// K or V of one layer.
struct Plane {
  std::byte* base = nullptr;  // sources are never written through it
  int64_t page_stride = 0;    // bytes; unused when contiguous
  int64_t token_stride = 0;   // bytes
  int64_t head_stride = 0;    // bytes
  // FP8 only: value = scale * code. One entry = per layer, kv_heads entries = per head.
  std::vector<float> scales;
};

struct KvView {
  tensor::DType dtype = tensor::DType::kBf16;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t tokens = 0;              // tokens that may be addressed
  int64_t tokens_per_page = 0;     // 0 = contiguous
  std::span<const int32_t> pages;  // physical page of each logical page; -1 = evicted
  std::vector<Plane> planes;       // [layers * 2], K of layer l at 2l, V at 2l + 1

  Plane& plane(int32_t layer, Component c) { return planes[2 * layer + static_cast<int>(c)]; }
  const Plane& plane(int32_t layer, Component c) const {
    return planes[2 * layer + static_cast<int>(c)];
  }
  int64_t row() const { return int64_t{kv_heads} * head_dim; }
  float Scale(int32_t layer, Component c, int32_t head) const {
    const auto& s = plane(layer, c).scales;
    return s.empty() ? 1.0f : (s.size() == 1 ? s[0] : s[head]);
  }
  // First element of (layer, component, token, head 0). No bounds check: see Validate.
  std::byte* Row(int32_t layer, Component c, int64_t token) const {
    const Plane& p = plane(layer, c);
    if (tokens_per_page == 0) return p.base + token * p.token_stride;
    return p.base + int64_t{pages[token / tokens_per_page]} * p.page_stride +
           (token % tokens_per_page) * p.token_stride;
  }
};

// FP8 needs 1 or `kv_heads` finite scales above zero, every other dtype none. INVALID_ARGUMENT
// starts with `field`.
absl::Status ValidateScales(tensor::DType dtype, int32_t kv_heads, std::span<const float> scales,
                            absl::string_view field);

// Checks that every count is positive and consistent, the scales, that there are pages for all
// tokens, none negative (a -1 answers FAILED_PRECONDITION "evicted", the rest INVALID_ARGUMENT) and
// none listed twice, and that no two elements of a plane share bytes. For the last, the strides of
// heads, slots and pages must nest, in any order: each at least as large as all that the smaller
// ones span. Every known layout does. Each message names the field.
absl::Status Validate(const KvView& view);

// Whether all bytes that the view's plane addresses, whole last page included, lie in `buffer`:
// OUT_OF_RANGE if not. Overflow-safe for any strides. The view passed Validate.
absl::Status CheckWithin(const KvView& view, int32_t layer, Component c,
                         std::span<const std::byte> buffer);
// The same for every plane.
absl::Status CheckWithin(const KvView& view, std::span<const std::byte> buffer);

// A dense row-major [layers, 2, tokens, kv_heads, head_dim] view over `buffer` (the layout of
// inline tile buffers). The scales of an FP8 view are the caller's to fill in, here and below.
KvView DenseTileView(std::byte* buffer, tensor::DType dtype, int32_t layers, int64_t tokens,
                     int32_t kv_heads, int32_t head_dim);
// A dense view of the cache file's and Hugging Face's layout: K [layers, kv_heads, tokens,
// head_dim] at `keys`, V the same at `values`.
KvView DenseHeadMajorView(std::byte* keys, std::byte* values, tensor::DType dtype, int32_t layers,
                          int64_t tokens, int32_t kv_heads, int32_t head_dim);

// out[(t - range.begin) * row + h * head_dim + d] as FP32.
void ReadRows(const KvView& view, int32_t layer, Component c, TokenRange range, float* out);

// Writes values[0, head_dim) to one head of one token; returns how many elements saturated.
uint64_t WriteHead(const KvView& view, int32_t layer, Component c, int64_t token, int32_t head,
                   const float* values);

// Zeroes all heads of tokens [range) in one layer and component.
void ZeroRows(const KvView& view, int32_t layer, Component c, TokenRange range);
// Zeroes the slots past the last token of its last page, in every layer and component: attention
// kernels read whole pages, and NaN left there poisons them. No-op on contiguous views.
void ZeroTail(const KvView& view);

}  // namespace kvbridge::kv
