// Runs target layers of a prepared tile: products, then bias, norm, rotation, checks and store
// while the results are still in the cache.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "core/device/cpu/prepared_tile.h"

namespace kvbridge::device::cpu {

// INVALID_ARGUMENT when the target is not what the mapper writes; CANCELLED, with the target partly
// written, once `cancelled` (called from any worker) answers true.
absl::StatusOr<TileChecks> MapLayers(const ResidentWeights& resident, const CpuTile& tile,
                                     kv::LayerRange layers, const kv::KvView& target,
                                     int64_t target_begin, const KernelSet& kernels,
                                     base::WorkerPool& workers,
                                     absl::FunctionRef<bool()> cancelled);

}  // namespace kvbridge::device::cpu
