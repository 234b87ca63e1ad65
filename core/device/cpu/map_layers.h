// Runs target layers of prepared tiles: products, then bias, norm, rotation, checks and store while
// the results are still in the cache. The blocks of all tiles pass by each weight together.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "core/device/cpu/prepared_tile.h"

namespace kvbridge::device::cpu {

// Bytes that a call for `tokens` takes while it runs. `lanes`: threads that may work on it at once.
uint64_t CallBytes(const ResidentWeights& resident, int64_t tokens, int32_t lanes);

// See Backend::MapTogether. INVALID_ARGUMENT when a part's target is not what the mapper writes;
// RESOURCE_EXHAUSTED, for all parts, from the pool.
std::vector<absl::StatusOr<TileChecks>> MapTogether(const ResidentWeights& resident,
                                                    kv::LayerRange layers,
                                                    std::span<const TilePart> parts,
                                                    const KernelSet& kernels, kv::BufferPool& pool,
                                                    base::WorkerPool& workers);

}  // namespace kvbridge::device::cpu
