#include "core/memory/pool_layout.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::memory {
namespace {

std::string PlaneName(size_t plane) {
  return absl::StrCat("planes[layer ", plane / 2, ", ", Name(static_cast<kv::Component>(plane % 2)),
                      "]");
}

absl::Status CheckCounts(const PoolSpec& spec) {
  const std::pair<absl::string_view, int32_t> counts[] = {{"tokens_per_page", spec.tokens_per_page},
                                                          {"pages", spec.pages}};
  for (const auto& [field, count] : counts) {
    if (count >= 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, ": expected at least 1, got ", count));
  }
  const int32_t layers = spec.model.geometry.layers;
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

}  // namespace

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
