// Proves that a resident mapper maps: before it may serve, and as its warm-up.
#pragma once

#include "absl/status/status.h"

#include "core/device/backend.h"

namespace kvbridge::store {

// Maps a tiny seeded cache through every layer, twice. OK when every element is finite, both runs
// give the same bytes, and rows of the first, middle and last layer agree with a plain FP64
// calculation from the artifact's own weights: within 2^-6 (kBf16) or 1e-4 (kF32) of the row's sum
// of absolute products, which bounds what rounding of weights and features can do. DATA_LOSS names
// layer, component and head otherwise; errors of the backend are passed on.
absl::Status SelfTest(device::Backend* backend, const device::ResidentMapper& resident);

}  // namespace kvbridge::store
