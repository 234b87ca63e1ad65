#include "core/memory/pool_layout.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::memory {
namespace {

constexpr int32_t kMostLayers = 2048;

std::string PlaneName(size_t plane) {
  return absl::StrCat("planes[layer ", plane / 2, ", ", Name(static_cast<kv::Component>(plane % 2)),
                      "]");
}

int64_t HeadBytes(const kv::KvView& view) {
  return int64_t{view.head_dim} * static_cast<int64_t>(ByteSize(view.dtype));
}

absl::Status CheckCounts(const PoolSpec& spec) {
  const std::pair<absl::string_view, int32_t> counts[] = {{"tokens_per_page", spec.tokens_per_page},
                                                          {"pages", spec.pages}};
  for (const auto& [field, count] : counts) {
    if (count >= 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, ": expected at least 1, got ", count));
  }
  const int32_t layers = spec.model.geometry.layers;
  if (layers > kMostLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers: expected at most ", kMostLayers, ", got ", layers));
  }
  if (std::cmp_equal(spec.planes.size(), int64_t{layers} * 2)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("planes: expected 2 for each of ", layers, " layers, got ", spec.planes.size()));
}

absl::Status CheckAligned(const PoolPlane& plane, tensor::DType dtype, size_t index) {
  const auto unit = static_cast<int64_t>(ByteSize(dtype));
  const std::pair<absl::string_view, int64_t> fields[] = {
      {"base_offset", static_cast<int64_t>(plane.base_offset % unit)},
      {"page_stride", plane.page_stride},
      {"token_stride", plane.token_stride},
      {"head_stride", plane.head_stride}};
  for (const auto& [field, value] : fields) {
    if (value % unit == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        PlaneName(index), ".", field, ": expected a multiple of ", unit, " for ", Name(dtype)));
  }
  return absl::OkStatus();
}

// One dimension of a plane: `count` elements, `stride` bytes apart. A dimension of one element has
// no stride, whatever was stated.
struct Axis {
  Axis(int64_t stated, int64_t elements) : stride(elements == 1 ? 0 : stated), count(elements) {}
  friend bool operator==(const Axis&, const Axis&) = default;
  int64_t stride;
  int64_t count;
};

// Where a plane's elements lie, however they are numbered: from `begin` on, in steps of strides
// above zero, the largest first.
struct Extent {
  size_t plane;
  const std::byte* begin;
  const std::byte* end;
  std::array<Axis, 3> axes;
};

Extent ExtentOf(const kv::KvView& view, int32_t pages, size_t index) {
  const kv::Plane& plane = view.planes[index];
  Extent extent{index,
                plane.base,
                plane.base + HeadBytes(view),
                {Axis(plane.page_stride, pages), Axis(plane.token_stride, view.tokens_per_page),
                 Axis(plane.head_stride, view.kv_heads)}};
  for (Axis& axis : extent.axes) {
    (axis.stride < 0 ? extent.begin : extent.end) += axis.stride * (axis.count - 1);
    axis.stride = std::abs(axis.stride);
  }
  std::sort(extent.axes.begin(), extent.axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  return extent;
}

// Whether some element of one plane lies less than `width` bytes from some element of another that
// has the same axes and begins `distance` bytes later. Strides nest (kv::Validate), so all that the
// smaller ones reach is less than one step of a larger one: only two counts of it can be near.
bool Meets(std::span<const Axis> axes, int64_t distance, int64_t width) {
  if (axes.empty() || axes.front().stride == 0) return std::abs(distance) < width;
  const auto [stride, count] = axes.front();
  const int64_t below = distance / stride - (distance % stride < 0 ? 1 : 0);
  for (const int64_t steps : {below, below + 1}) {
    if (std::abs(steps) < count && Meets(axes.subspan(1), distance - steps * stride, width)) {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::Status CheckPlanesApart(const kv::KvView& view, int32_t pages) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < view.planes.size(); ++i) extents.push_back(ExtentOf(view, pages, i));
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (auto a = extents.begin(); a != extents.end(); ++a) {
    for (auto b = a + 1; b != extents.end() && b->begin < a->end; ++b) {
      const bool alike = a->axes == b->axes;
      if (alike && !Meets(a->axes, b->begin - a->begin, HeadBytes(view))) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          PlaneName(std::max(a->plane, b->plane)), ": expected bytes of its own in a pool that is ",
          "written, got some of ", PlaneName(std::min(a->plane, b->plane)),
          alike ? "" : ", or different strides in between"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<kv::KvView> LayOut(const PoolSpec& spec, const RegionBytes& region_bytes) {
  KVB_RETURN_IF_ERROR(CheckCounts(spec));
  const model::KvGeometry& geometry = spec.model.geometry;
  // The first and the last page span all that lie between them.
  const std::array<int32_t, 2> ends = {0, spec.pages - 1};
  const std::span<const int32_t> extremes = std::span(ends).first(spec.pages == 1 ? 1 : 2);
  kv::KvView view{.dtype = geometry.dtype,
                  .layers = geometry.layers,
                  .kv_heads = geometry.kv_heads,
                  .head_dim = geometry.head_dim,
                  .tokens = int64_t{spec.tokens_per_page} * std::ssize(extremes),
                  .tokens_per_page = spec.tokens_per_page,
                  .pages = extremes,
                  .planes = std::vector<kv::Plane>(spec.planes.size())};
  std::vector<std::span<std::byte>> regions(spec.planes.size());
  for (size_t i = 0; i < spec.planes.size(); ++i) {
    const PoolPlane& plane = spec.planes[i];
    const std::optional<std::span<std::byte>> region = region_bytes(plane.region_id);
    if (!region.has_value()) {
      return absl::NotFoundError(absl::StrCat(PlaneName(i), ".region_id: not found"));
    }
    if (plane.base_offset >= region->size()) {
      return absl::OutOfRangeError(absl::StrCat(PlaneName(i), ".base_offset: expected less than ",
                                                region->size(), ", got ", plane.base_offset));
    }
    KVB_RETURN_IF_ERROR(CheckAligned(plane, geometry.dtype, i));
    regions[i] = *region;
    view.planes[i] = {.base = region->data() + plane.base_offset,
                      .page_stride = plane.page_stride,
                      .token_stride = plane.token_stride,
                      .head_stride = plane.head_stride,
                      .scales = plane.scales};
  }
  KVB_RETURN_IF_ERROR(kv::Validate(view));
  for (size_t i = 0; i < regions.size(); ++i) {
    KVB_RETURN_IF_ERROR(kv::CheckWithin(view, static_cast<int32_t>(i / 2),
                                        static_cast<kv::Component>(i % 2), regions[i]));
  }
  view.tokens = 0;
  view.pages = {};
  return view;
}

}  // namespace kvbridge::memory
