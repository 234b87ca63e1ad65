// From a pool's description to addresses, checked once for all pages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/kv/kv_view.h"
#include "core/memory/pool.h"

namespace kvbridge::memory {

// The bytes of a region; none = unknown.
using RegionBytes = std::function<std::optional<std::span<std::byte>>(absl::string_view region_id)>;

// The view of PoolPin: every page of the pool, no page table. Every element of every page lies
// inside its plane's region, no two of a plane share bytes, and all are aligned to their type; so a
// request has only its page numbers to check. INVALID_ARGUMENT, OUT_OF_RANGE and NOT_FOUND name the
// plane's field, never a region. Overflow-safe for any spec.
absl::StatusOr<kv::KvView> LayOut(const PoolSpec& spec, const RegionBytes& region_bytes);

// For a pool that will be written: INVALID_ARGUMENT names two planes of `view`, as LayOut made it,
// that share bytes. Sources may: layers that share a cache do. Planes whose bytes interleave must
// have the same strides, as those of one tensor have.
absl::Status CheckPlanesApart(const kv::KvView& view, int32_t pages);

}  // namespace kvbridge::memory
