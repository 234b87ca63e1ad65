#include "core/rope/rope_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace kvbridge::rope {

absl::string_view Name(Pairing pairing) {
  return pairing == Pairing::kHalf ? "half" : "interleaved";
}

absl::Status Validate(const RopeParams& params, int32_t head_dim, absl::string_view path) {
  if (params.rotary_dim < 0 || params.rotary_dim > head_dim || params.rotary_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".rotary_dim: expected an even number from 0 to head_dim = ", head_dim,
                     ", got ", params.rotary_dim));
  }
  if (params.inv_freq.size() != static_cast<size_t>(params.rotary_dim / 2)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".inv_freq: expected rotary_dim / 2 = ", params.rotary_dim / 2,
                     " frequencies, got ", params.inv_freq.size()));
  }
  for (size_t i = 0; i < params.inv_freq.size(); ++i) {
    if (!(params.inv_freq[i] > 0 && params.inv_freq[i] < 2 * M_PI)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".inv_freq[", i, "]: expected radians per position in (0, 2 pi), got ",
                       params.inv_freq[i]));
    }
  }
  if (!(params.attention_factor >= 0.01 && params.attention_factor <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".attention_factor: expected a number from 0.01 to 100, got ",
                     params.attention_factor));
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::rope
