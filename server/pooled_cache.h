// One transfer's side of the region plane: pages of a registered pool, pinned.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/guard/reason.h"
#include "core/kv/kv_view.h"
#include "core/memory/memory_registry.h"
#include "core/model/model_spec.h"

namespace kvbridge::server {

// Where a selection lies in a pool, as its caller states it.
struct PoolPlace {
  std::string pool_id;
  uint64_t generation = 0;
  std::vector<int32_t> pages;  // physical page of each logical one, in token order
};

// Thread contract: immutable. Whoever holds it keeps the memory mapped.
class PooledCache {
 public:
  struct Claim {
    absl::string_view tenant;
    absl::string_view path;  // of the selection, for messages: "source_selection"
    const model::ModelSpec& model;
    int64_t tokens = 0;
    bool write = false;
  };
  // Pins the pool. Refused: the pool is unknown (or another tenant's, which sounds the same), its
  // generation is stale, it holds another model's cache or may not be written (invalid_request);
  // its pages are not those of `tokens` tokens, or one is evicted (shape_mismatch); its memory was
  // cut short (transport). `registry` is null where this server has no region plane.
  static std::variant<std::shared_ptr<const PooledCache>, guard::Refusal> Pin(
      const memory::MemoryRegistry* registry, const Claim& claim, PoolPlace place);

  PooledCache(const PooledCache&) = delete;
  PooledCache& operator=(const PooledCache&) = delete;

  // Of all of the selection's tokens.
  const kv::KvView& view() const { return view_; }
  // DATA_LOSS names the selection: see memory::Region::CheckWhole.
  absl::Status CheckWhole() const;

 private:
  PooledCache(std::string field, memory::PoolPin pin, std::vector<int32_t> pages)
      : field_(std::move(field)), pin_(std::move(pin)), pages_(std::move(pages)) {}

  const std::string field_;  // for messages
  const memory::PoolPin pin_;
  const std::vector<int32_t> pages_;
  kv::KvView view_;  // borrows both
};

}  // namespace kvbridge::server
