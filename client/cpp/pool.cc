#include "client/cpp/pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvbridge::client {

absl::StatusOr<std::shared_ptr<const Pool>> Pool::Create(PoolLayout layout, Regions regions) {
  const std::shared_ptr<Pool> pool(new Pool(std::move(layout), std::move(regions)));
  if (absl::Status status = pool->Check(); !status.ok()) return status;
  const PoolLayout& of = pool->layout_;
  const v1::KvGeometry& geometry = of.model.geometry();
  const auto extent = static_cast<int64_t>(
      (of.pages - 1) * of.page_stride + (of.tokens_per_page - 1) * of.token_stride +
      (geometry.kv_heads() - 1) * of.head_stride +
      geometry.head_dim() * static_cast<int64_t>(ElementBytes(geometry.element_type())));
  for (size_t i = 0; i < of.planes.size(); ++i) {
    const auto lies_in = [&](const std::shared_ptr<const SharedRegion>& region) {
      const std::span<std::byte> bytes = region->bytes();
      return std::greater_equal<>()(of.planes[i], bytes.data()) &&
             std::less<>()(of.planes[i], bytes.data() + bytes.size()) &&
             bytes.data() + bytes.size() - of.planes[i] >= extent;
    };
    const auto region = std::find_if(pool->regions_.begin(), pool->regions_.end(), lies_in);
    if (region == pool->regions_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("layout.planes[", i, "]: expected ", extent,
                                                     " bytes within one region, got less"));
    }
    pool->region_of_.push_back(static_cast<size_t>(region - pool->regions_.begin()));
  }
  return pool;
}

absl::Status Pool::Check() const {
  for (const auto& [name, stride] :
       {std::pair<absl::string_view, int64_t>{"page_stride", layout_.page_stride},
        {"token_stride", layout_.token_stride},
        {"head_stride", layout_.head_stride}}) {
    // Below the square root of what an address can hold, so that no extent overflows.
    if (stride < 0 || stride >= int64_t{1} << 40) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout.", name, ": expected 0 to 2^40, got ", stride));
    }
  }
  constexpr int32_t kMaxCount = 1 << 22;
  for (const auto& [name, count] :
       {std::pair<absl::string_view, int32_t>{"tokens_per_page", layout_.tokens_per_page},
        {"pages", layout_.pages}}) {
    if (count < 1 || count > kMaxCount) {
      return absl::InvalidArgumentError(
          absl::StrCat("layout.", name, ": expected 1 to ", kMaxCount, ", got ", count));
    }
  }
  TargetView all;
  const v1::KvGeometry& geometry = layout_.model.geometry();
  all.shape = {.element_type = geometry.element_type(),
               .layers = geometry.layers(),
               .kv_heads = geometry.kv_heads(),
               .head_dim = geometry.head_dim(),
               .tokens = layout_.tokens_per_page};
  all.planes = layout_.planes;
  all.token_stride = layout_.token_stride;
  all.head_stride = layout_.head_stride;
  return Validate(all, "layout");
}

template <typename View>
absl::StatusOr<View> Pool::ViewOf(std::span<const int32_t> pages, int64_t tokens) const {
  for (size_t i = 0; i < pages.size(); ++i) {
    if (pages[i] < 0 || pages[i] >= layout_.pages) {
      return absl::InvalidArgumentError(
          absl::StrCat("pages[", i, "]: expected 0 to ", layout_.pages - 1, ", got ", pages[i]));
    }
  }
  const v1::KvGeometry& geometry = layout_.model.geometry();
  View view;
  view.shape = {.element_type = geometry.element_type(),
                .layers = geometry.layers(),
                .kv_heads = geometry.kv_heads(),
                .head_dim = geometry.head_dim(),
                .tokens = tokens};
  view.planes.assign(layout_.planes.begin(), layout_.planes.end());
  view.token_stride = layout_.token_stride;
  view.head_stride = layout_.head_stride;
  view.pages.assign(pages.begin(), pages.end());
  view.tokens_per_page = layout_.tokens_per_page;
  view.page_stride = layout_.page_stride;
  view.pool = shared_from_this();
  if (pages.empty()) return absl::InvalidArgumentError("pages: expected at least 1, got none");
  if (absl::Status status = Validate(view, "cache"); !status.ok()) return status;
  return view;
}

absl::StatusOr<SourceView> Pool::Source(std::span<const int32_t> pages, int64_t tokens) const {
  return ViewOf<SourceView>(pages, tokens);
}

absl::StatusOr<TargetView> Pool::Target(std::span<const int32_t> pages, int64_t tokens) const {
  return ViewOf<TargetView>(pages, tokens);
}

v1::RegisterPoolRequest Pool::Request(const std::string& session_id,
                                      const std::vector<std::string>& region_ids) const {
  v1::RegisterPoolRequest request;
  request.set_session_id(session_id);
  *request.mutable_model() = layout_.model;
  request.set_tokens_per_page(layout_.tokens_per_page);
  request.set_pages(layout_.pages);
  for (size_t i = 0; i < layout_.planes.size(); ++i) {
    v1::PoolPlane& plane = i % 2 == 0 ? *request.add_keys() : *request.add_values();
    const size_t region = region_of_[i];
    plane.set_region_id(region_ids[region]);
    plane.set_base_offset(
        static_cast<uint64_t>(layout_.planes[i] - regions_[region]->bytes().data()));
    plane.set_page_stride(layout_.page_stride);
    plane.set_token_stride(layout_.token_stride);
    plane.set_head_stride(layout_.head_stride);
    if (i / 2 < layout_.scales.size()) {
      const v1::LayerScales& scales = layout_.scales[i / 2];
      *plane.mutable_scales() = i % 2 == 0 ? scales.key() : scales.value();
    }
  }
  return request;
}

}  // namespace kvbridge::client
