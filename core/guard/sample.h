// Deterministic sampling: the same request is chosen on every replica and on every retry.
//
//   bucket   = first 8 bytes, big-endian, of SHA-256(salt + ":" + request_id), over 2^64
//   selected = bucket < rate;  rate <= 0 never, rate >= 1 always
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::guard {

// In [0, 1]: the quotient is rounded once, to nearest, so that values just below 2^64 give 1.
absl::StatusOr<double> SampleBucket(absl::string_view salt, absl::string_view request_id);

absl::StatusOr<bool> Sampled(absl::string_view salt, absl::string_view request_id, double rate);

}  // namespace kvbridge::guard
