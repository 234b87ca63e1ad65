// A paged cache that lies in shared regions. Described once, by byte strides: that covers every
// layout that engines have. It belongs to no client: each registers it with its server when it
// first uses it, and again after the server was restarted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cpp/cache_view.h"
#include "client/cpp/shared_region.h"
#include "kvbridge/v1/memory.pb.h"
#include "kvbridge/v1/types.pb.h"

namespace kvbridge::client {

struct PoolLayout {
  v1::ModelSpec model;  // the model whose cache it is, geometry included
  int32_t tokens_per_page = 0;
  int32_t pages = 0;
  // Page 0, slot 0, head 0 of each plane: [layers * 2], K of layer l at 2l, V at 2l + 1.
  std::vector<std::byte*> planes;
  int64_t page_stride = 0;              // bytes
  int64_t token_stride = 0;             // bytes
  int64_t head_stride = 0;              // bytes
  std::vector<v1::LayerScales> scales;  // FP8: one per layer
};

// Thread contract: immutable.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  using Regions = std::vector<std::shared_ptr<const SharedRegion>>;

  // INVALID_ARGUMENT names what does not fit: a count, a stride, a plane that does not lie in one
  // of `regions` as a whole.
  static absl::StatusOr<std::shared_ptr<const Pool>> Create(PoolLayout layout, Regions regions);

  // The cache of `tokens` tokens that lie in these physical pages, in token order, for
  // Client::Transfer. INVALID_ARGUMENT names a page beyond the pool, or a count that is wrong.
  absl::StatusOr<SourceView> Source(std::span<const int32_t> pages, int64_t tokens) const;
  absl::StatusOr<TargetView> Target(std::span<const int32_t> pages, int64_t tokens) const;

  const PoolLayout& layout() const { return layout_; }
  const Regions& regions() const { return regions_; }

  // What makes it known to a session. `region_ids` are of regions().
  v1::RegisterPoolRequest Request(const std::string& session_id,
                                  const std::vector<std::string>& region_ids) const;

 private:
  Pool(PoolLayout layout, Regions regions)
      : layout_(std::move(layout)), regions_(std::move(regions)) {}
  absl::Status Check() const;
  template <typename View>
  absl::StatusOr<View> ViewOf(std::span<const int32_t> pages, int64_t tokens) const;

  const PoolLayout layout_;
  const Regions regions_;
  std::vector<size_t> region_of_;  // [planes]
};

}  // namespace kvbridge::client
