#include "core/guard/sample.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"

namespace kvbridge::guard {

absl::StatusOr<double> SampleBucket(absl::string_view salt, absl::string_view request_id) {
  const std::string text = absl::StrCat(salt, ":", request_id);
  KVB_ASSIGN_OR_RETURN(const crypto::Digest digest,
                       crypto::Sha256Of(std::as_bytes(std::span(text.data(), text.size()))));
  uint64_t top = 0;
  for (int i = 0; i < 8; ++i) top = top << 8 | digest[i];
  // The conversion rounds to nearest; the scale is a power of two and exact.
  return static_cast<double>(top) * 0x1p-64;
}

absl::StatusOr<bool> Sampled(absl::string_view salt, absl::string_view request_id, double rate) {
  if (!(rate > 0)) return false;
  if (rate >= 1) return true;
  KVB_ASSIGN_OR_RETURN(const double bucket, SampleBucket(salt, request_id));
  return bucket < rate;
}

}  // namespace kvbridge::guard
