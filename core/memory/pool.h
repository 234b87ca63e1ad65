// A paged cache that an engine registered once, and one transfer's hold on it.
//
// A pool is described by byte strides (kv_view.h says why there is no layout enum). A request then
// sends page tables only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "core/kv/kv_view.h"
#include "core/model/model_spec.h"

namespace kvbridge::memory {

class Region;

// K or V of one layer inside a region. head_dim is contiguous.
struct PoolPlane {
  std::string region_id;
  uint64_t base_offset = 0;   // of page 0, slot 0, head 0, in bytes from the region's start
  int64_t page_stride = 0;    // bytes
  int64_t token_stride = 0;   // bytes
  int64_t head_stride = 0;    // bytes
  std::vector<float> scales;  // FP8 only: one, or one per head
};

struct PoolSpec {
  model::ModelSpec model;  // the model whose cache it is; geometry.dtype is the pool's
  int32_t tokens_per_page = 0;
  int32_t pages = 0;
  std::vector<PoolPlane> planes;  // [layers * 2], K of layer l at 2l, V at 2l + 1
};

// A pool in use. Its regions stay mapped while a copy lives, whatever is unregistered meanwhile.
//
// Thread contract: a value; copies may be used from different threads.
class PoolPin {
 public:
  // `view` addresses every page of the pool and has no page table; `owner` keeps the memory mapped,
  // and `unsealed`, those of its regions whose size can change.
  PoolPin(kv::KvView view, int32_t pages, bool writable, std::shared_ptr<const void> owner,
          std::span<const Region* const> unsealed, std::shared_ptr<const model::ModelSpec> model)
      : view_(std::move(view)),
        pages_(pages),
        writable_(writable),
        owner_(std::move(owner)),
        unsealed_(unsealed),
        model_(std::move(model)) {}

  // The cache of `tokens` tokens that lie in these physical pages, in token order. The view borrows
  // the array behind `pages`; the caller keeps it and this pin. INVALID_ARGUMENT (count, range,
  // page twice) or FAILED_PRECONDITION (a -1: "evicted") names the entry.
  absl::StatusOr<kv::KvView> View(int64_t tokens, std::span<const int32_t> pages) const;

  const model::ModelSpec& model() const { return *model_; }
  // Whether it may be a target: all its regions are mapped for writing.
  bool writable() const { return writable_; }
  std::shared_ptr<const void> owner() const { return owner_; }
  // Region::CheckWhole of all that it lies in.
  absl::Status CheckWhole() const;

 private:
  kv::KvView view_;
  int32_t pages_;
  bool writable_;
  std::shared_ptr<const void> owner_;
  std::span<const Region* const> unsealed_;
  std::shared_ptr<const model::ModelSpec> model_;
};

}  // namespace kvbridge::memory
