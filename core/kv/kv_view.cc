#include "core/kv/kv_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "core/base/status_macros.h"
#include "core/tensor/convert.h"

namespace kvbridge::kv {
namespace {

// Strides come from requests: products of them are formed in 128 bits, where they cannot wrap.
using Wide = __int128;

// One dimension of a plane: indices [first, last], `stride` bytes apart.
struct Axis {
  const char* name;
  Wide stride;
  int64_t first;
  int64_t last;

  int64_t count() const { return last - first + 1; }
  Wide magnitude() const { return stride < 0 ? -stride : stride; }
  Wide low() const { return std::min(stride * first, stride * last); }
  Wide high() const { return std::max(stride * first, stride * last); }
};

int64_t Printable(Wide value) {
  return static_cast<int64_t>(std::min<Wide>(value, std::numeric_limits<int64_t>::max()));
}

std::string PlaneName(int32_t layer, Component c) {
  return absl::StrCat("planes[layer ", layer, ", ", Name(c), "]");
}

int64_t HeadBytes(const KvView& view) {
  return int64_t{view.head_dim} * static_cast<int64_t>(ByteSize(view.dtype));
}

int64_t UsedPages(const KvView& view) { return (view.tokens - 1) / view.tokens_per_page + 1; }

// Heads, slots and pages of a plane, whole pages at a time.
std::array<Axis, 3> Axes(const KvView& view, const Plane& plane) {
  const Axis heads{"head_stride", plane.head_stride, 0, view.kv_heads - 1};
  if (view.tokens_per_page == 0) {
    return {heads, Axis{"token_stride", plane.token_stride, 0, view.tokens - 1},
            Axis{"page_stride", 0, 0, 0}};
  }
  const auto used = view.pages.first(UsedPages(view));
  const auto [least, greatest] = std::minmax_element(used.begin(), used.end());
  return {heads, Axis{"token_stride", plane.token_stride, 0, view.tokens_per_page - 1},
          Axis{"page_stride", plane.page_stride, *least, *greatest}};
}

absl::Status CheckPositive(absl::string_view field, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected at least 1, got ", value));
}

absl::Status CheckPages(const KvView& view) {
  if (view.tokens_per_page < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens_per_page: expected 0 or more, got ", view.tokens_per_page));
  }
  if (view.tokens_per_page == 0) {
    if (view.pages.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "pages: expected none in a contiguous view (tokens_per_page 0), got ", view.pages.size()));
  }
  const int64_t needed = UsedPages(view);
  if (std::cmp_less(view.pages.size(), needed)) {
    return absl::InvalidArgumentError(absl::StrCat("pages: expected ", needed, " for ", view.tokens,
                                                   " tokens, got ", view.pages.size()));
  }
  for (int64_t i = 0; i < needed; ++i) {
    const int32_t page = view.pages[i];
    if (page == -1) {
      return absl::FailedPreconditionError(absl::StrCat("pages[", i, "]: evicted"));
    }
    if (page < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("pages[", i, "]: expected 0 or more, got ", page));
    }
  }
  std::vector<int32_t> sorted(view.pages.begin(), view.pages.begin() + needed);
  std::sort(sorted.begin(), sorted.end());
  const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
  if (twin == sorted.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("pages: expected distinct pages, got page ", *twin, " twice"));
}

absl::Status CheckNoOverlap(const KvView& view, const Plane& plane, absl::string_view field) {
  std::array<Axis, 3> axes = Axes(view, plane);
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.magnitude() < b.magnitude(); });
  Wide spanned = HeadBytes(view);
  for (const Axis& axis : axes) {
    if (axis.count() == 1) continue;
    if (axis.magnitude() < spanned) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".", axis.name, ": expected at least ", Printable(spanned),
                       " bytes apart (elements would overlap), got ", Printable(axis.stride)));
    }
    spanned += axis.magnitude() * (axis.count() - 1);
  }
  return absl::OkStatus();
}

absl::Status CheckPlane(const KvView& view, int32_t layer, Component c) {
  const Plane& plane = view.plane(layer, c);
  const std::string field = PlaneName(layer, c);
  if (plane.base == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".base: expected memory, got none"));
  }
  KVB_RETURN_IF_ERROR(ValidateScales(view.dtype, view.kv_heads, plane.scales, field + ".scales"));
  return CheckNoOverlap(view, plane, field);
}

bool HeadsAreDense(const KvView& view, const Plane& plane) {
  return view.kv_heads == 1 || plane.head_stride == HeadBytes(view);
}

KvView EmptyView(tensor::DType dtype, int32_t layers, int64_t tokens, int32_t kv_heads,
                 int32_t head_dim) {
  return {.dtype = dtype,
          .layers = layers,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .tokens = tokens,
          .tokens_per_page = 0,
          .pages = {},
          .planes = std::vector<Plane>(size_t(layers) * 2)};
}

}  // namespace

absl::Status ValidateScales(tensor::DType dtype, int32_t kv_heads, std::span<const float> scales,
                            absl::string_view field) {
  if (dtype != tensor::DType::kF8E4M3) {
    if (scales.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected none for ", Name(dtype), ", got ", scales.size()));
  }
  if (scales.size() != 1 && std::cmp_not_equal(scales.size(), kv_heads)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected 1 or ", kv_heads, " for f8_e4m3, got ", scales.size()));
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i]) && scales[i] > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, "[", i, "]: expected finite and above 0, got ", scales[i]));
  }
  return absl::OkStatus();
}

absl::Status Validate(const KvView& view) {
  KVB_RETURN_IF_ERROR(CheckPositive("layers", view.layers));
  KVB_RETURN_IF_ERROR(CheckPositive("kv_heads", view.kv_heads));
  KVB_RETURN_IF_ERROR(CheckPositive("head_dim", view.head_dim));
  KVB_RETURN_IF_ERROR(CheckPositive("tokens", view.tokens));
  if (std::cmp_not_equal(view.planes.size(), int64_t{view.layers} * 2)) {
    return absl::InvalidArgumentError(absl::StrCat("planes: expected 2 for each of ", view.layers,
                                                   " layers, got ", view.planes.size()));
  }
  KVB_RETURN_IF_ERROR(CheckPages(view));
  for (int32_t layer = 0; layer < view.layers; ++layer) {
    for (Component c : kComponents) KVB_RETURN_IF_ERROR(CheckPlane(view, layer, c));
  }
  return absl::OkStatus();
}

absl::Status CheckWithin(const KvView& view, int32_t layer, Component c,
                         std::span<const std::byte> buffer) {
  const Plane& plane = view.plane(layer, c);
  const Wide buffer_begin = reinterpret_cast<uintptr_t>(buffer.data());
  const Wide buffer_end = buffer_begin + buffer.size();
  Wide begin = reinterpret_cast<uintptr_t>(plane.base);
  Wide end = begin + HeadBytes(view);
  for (const Axis& axis : Axes(view, plane)) {
    begin += axis.low();
    end += axis.high();
  }
  if (begin >= buffer_begin && end <= buffer_end) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      PlaneName(layer, c), ": expected all bytes inside a buffer of ", buffer.size(),
      " bytes, got some ", begin < buffer_begin ? "before its begin" : "past its end"));
}

absl::Status CheckWithin(const KvView& view, std::span<const std::byte> buffer) {
  for (int32_t layer = 0; layer < view.layers; ++layer) {
    for (Component c : kComponents) KVB_RETURN_IF_ERROR(CheckWithin(view, layer, c, buffer));
  }
  return absl::OkStatus();
}

KvView DenseTileView(std::byte* buffer, tensor::DType dtype, int32_t layers, int64_t tokens,
                     int32_t kv_heads, int32_t head_dim) {
  KvView view = EmptyView(dtype, layers, tokens, kv_heads, head_dim);
  const int64_t head_bytes = HeadBytes(view);
  const int64_t row_bytes = head_bytes * kv_heads;
  for (size_t i = 0; i < view.planes.size(); ++i) {
    view.planes[i] = {.base = buffer + int64_t(i) * tokens * row_bytes,
                      .token_stride = row_bytes,
                      .head_stride = head_bytes};
  }
  return view;
}

KvView DenseHeadMajorView(std::byte* keys, std::byte* values, tensor::DType dtype, int32_t layers,
                          int64_t tokens, int32_t kv_heads, int32_t head_dim) {
  KvView view = EmptyView(dtype, layers, tokens, kv_heads, head_dim);
  const int64_t token_stride = HeadBytes(view);
  const int64_t head_stride = token_stride * tokens;
  for (int32_t layer = 0; layer < layers; ++layer) {
    for (Component c : kComponents) {
      std::byte* base = c == Component::kKey ? keys : values;
      view.plane(layer, c) = {.base = base + int64_t{layer} * kv_heads * head_stride,
                              .token_stride = token_stride,
                              .head_stride = head_stride};
    }
  }
  return view;
}

void ReadRows(const KvView& view, int32_t layer, Component c, TokenRange range, float* out) {
  const Plane& plane = view.plane(layer, c);
  const bool whole_rows = HeadsAreDense(view, plane) && plane.scales.size() <= 1;
  for (int64_t token = range.begin; token < range.end; ++token) {
    const std::byte* row = view.Row(layer, c, token);
    if (whole_rows) {
      DecodeRow(view.dtype, row, view.Scale(layer, c, 0), out, view.row());
      out += view.row();
      continue;
    }
    for (int32_t head = 0; head < view.kv_heads; ++head, out += view.head_dim) {
      DecodeRow(view.dtype, row + head * plane.head_stride, view.Scale(layer, c, head), out,
                view.head_dim);
    }
  }
}

uint64_t WriteHead(const KvView& view, int32_t layer, Component c, int64_t token, int32_t head,
                   const float* values) {
  std::byte* dst = view.Row(layer, c, token) + head * view.plane(layer, c).head_stride;
  return EncodeRow(view.dtype, values, view.Scale(layer, c, head), dst, view.head_dim);
}

void ZeroRows(const KvView& view, int32_t layer, Component c, TokenRange range) {
  const Plane& plane = view.plane(layer, c);
  const size_t head_bytes = HeadBytes(view);
  for (int64_t token = range.begin; token < range.end; ++token) {
    std::byte* row = view.Row(layer, c, token);
    if (HeadsAreDense(view, plane)) {
      std::memset(row, 0, head_bytes * view.kv_heads);
      continue;
    }
    for (int32_t head = 0; head < view.kv_heads; ++head) {
      std::memset(row + head * plane.head_stride, 0, head_bytes);
    }
  }
}

void ZeroTail(const KvView& view) {
  if (view.tokens_per_page == 0) return;
  const TokenRange tail{view.tokens, UsedPages(view) * view.tokens_per_page};
  for (int32_t layer = 0; layer < view.layers; ++layer) {
    for (Component c : kComponents) ZeroRows(view, layer, c, tail);
  }
}

}  // namespace kvbridge::kv
