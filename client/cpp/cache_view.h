// Where a cache lies in the caller's memory, by byte strides: vLLM's NHD, Hugging Face's
// [layers, heads, tokens, dim] and anything between, without the caller copying first.
//
// Element (layer l, component c, token t, head h, dim d) is at
//   planes[2 * l + c] + t * token_stride + h * head_stride + d * ElementBytes,   c: 0 = K, 1 = V.
// head_dim is contiguous. In a paged cache, token t is slot t % tokens_per_page of physical page
// pages[t / tokens_per_page]. A view borrows the memory it describes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "kvbridge/v1/types.pb.h"

namespace kvbridge::client {

struct CacheShape {
  v1::ElementType element_type = v1::ELEMENT_TYPE_UNSPECIFIED;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t tokens = 0;  // that may be addressed
};

class Pool;

// 0 for a type that is unknown.
size_t ElementBytes(v1::ElementType type);

template <typename Byte>
struct CacheView {
  CacheShape shape;
  std::vector<Byte*> planes;  // [layers * 2], K of layer l at 2l, V at 2l + 1
  int64_t token_stride = 0;   // bytes
  int64_t head_stride = 0;    // bytes

  std::vector<int32_t> pages;  // empty: the tokens lie in one row
  int32_t tokens_per_page = 0;
  int64_t page_stride = 0;  // bytes
  // What the pages are of: memory that a server on this host can map (pool.h makes such views).
  std::shared_ptr<const Pool> pool;

  // Where a token lies, and how many lie behind it in the same row, itself included.
  std::pair<Byte*, int64_t> Row(size_t plane, int64_t token) const {
    if (pages.empty()) return {planes[plane] + token * token_stride, shape.tokens - token};
    const int64_t slot = token % tokens_per_page;
    Byte* page = planes[plane] + pages[token / tokens_per_page] * page_stride;
    return {page + slot * token_stride, tokens_per_page - slot};
  }

  size_t head_bytes() const { return shape.head_dim * ElementBytes(shape.element_type); }
  // Bytes of one token in one plane.
  size_t row_bytes() const { return head_bytes() * shape.kv_heads; }
};

struct SourceView : CacheView<const std::byte> {
  // Set: rows that lie densely are sent from where they are, and the memory may be read until every
  // copy of `owner` is gone, which can be after Transfer has returned (a socket may still drain).
  // Not set: rows are copied, and the memory is not read after Transfer has returned.
  std::shared_ptr<const void> owner;
};
using TargetView = CacheView<std::byte>;

// Byte strides of a cache whose K planes, and V planes, are one allocation each.
struct Strides {
  int64_t layer = 0;
  int64_t token = 0;
  int64_t head = 0;
};

template <typename View, typename Byte>
View StridedView(const CacheShape& shape, Byte* keys, Byte* values, const Strides& strides) {
  View view;
  view.shape = shape;
  view.token_stride = strides.token;
  view.head_stride = strides.head;
  view.planes.reserve(2 * static_cast<size_t>(shape.layers));
  for (int32_t layer = 0; layer < shape.layers; ++layer) {
    view.planes.push_back(keys + layer * strides.layer);
    view.planes.push_back(values + layer * strides.layer);
  }
  return view;
}

// [layers, heads, tokens, dim]: cache files and Hugging Face's DynamicCache.
Strides HeadMajorStrides(const CacheShape& shape);
// [layers, tokens, heads, dim]: NHD engines.
Strides TokenMajorStrides(const CacheShape& shape);

// INVALID_ARGUMENT starting with `field`: a count out of range, an unknown element type.
absl::Status Validate(const CacheShape& shape, absl::string_view field);

// INVALID_ARGUMENT starting with `field`: what is wrong with the shape, planes
// that are not 2 * layers addresses, strides under which rows overlap, a page table that is not of
// its tokens.
template <typename Byte>
absl::Status Validate(const CacheView<Byte>& view, absl::string_view field);

// A rectangle of one component: what one chunk carries.
struct Piece {
  int32_t layer_begin = 0;
  int32_t layer_end = 0;
  v1::Component component = v1::COMPONENT_KEY;
  int64_t token_begin = 0;
  int64_t token_end = 0;

  int64_t cells() const { return int64_t{layer_end - layer_begin} * (token_end - token_begin); }
};

// Calls visit(address, bytes) for each contiguous run of a piece, in the order of a chunk's bytes:
// layer, token, head, dim. The piece lies within the view.
template <typename Byte, typename Visit>
void ForEachRun(const CacheView<Byte>& view, const Piece& piece, Visit visit) {
  const auto head_bytes = static_cast<int64_t>(view.head_bytes());
  const auto row_bytes = static_cast<int64_t>(view.row_bytes());
  const bool dense_row = view.shape.kv_heads == 1 || view.head_stride == head_bytes;
  const auto visit_rows = [&](Byte* row, int64_t tokens) {
    if (dense_row && view.token_stride == row_bytes) {
      visit(row, static_cast<size_t>(tokens * row_bytes));
      return;
    }
    for (int64_t token = 0; token < tokens; ++token, row += view.token_stride) {
      if (dense_row) {
        visit(row, static_cast<size_t>(row_bytes));
        continue;
      }
      for (int32_t head = 0; head < view.shape.kv_heads; ++head) {
        visit(row + head * view.head_stride, static_cast<size_t>(head_bytes));
      }
    }
  };
  const size_t component = piece.component == v1::COMPONENT_KEY ? 0 : 1;
  for (int32_t layer = piece.layer_begin; layer < piece.layer_end; ++layer) {
    for (int64_t token = piece.token_begin; token < piece.token_end;) {
      const auto [row, run] = view.Row(2 * static_cast<size_t>(layer) + component, token);
      const int64_t tokens = std::min(run, piece.token_end - token);
      visit_rows(row, tokens);
      token += tokens;
    }
  }
}

}  // namespace kvbridge::client
