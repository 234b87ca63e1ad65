#include "core/rope/rope_params.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace kvbridge::rope {

absl::string_view Name(Pairing pairing) {
  return pairing == Pairing::kHalf ? "half" : "interleaved";
}

std::optional<ParamsDefect> FindDefect(const RopeParams& params, int32_t head_dim) {
  if (params.rotary_dim < 0 || params.rotary_dim > head_dim || params.rotary_dim % 2 != 0) {
    return ParamsDefect{"rotary_dim",
                        absl::StrCat("an even number from 0 to head_dim = ", head_dim),
                        absl::StrCat(params.rotary_dim)};
  }
  if (params.inv_freq.size() != static_cast<size_t>(params.rotary_dim / 2)) {
    return ParamsDefect{"inv_freq",
                        absl::StrCat("rotary_dim / 2 = ", params.rotary_dim / 2, " frequencies"),
                        absl::StrCat(params.inv_freq.size())};
  }
  for (size_t i = 0; i < params.inv_freq.size(); ++i) {
    if (!(params.inv_freq[i] > 0 && params.inv_freq[i] < 2 * M_PI)) {
      return ParamsDefect{absl::StrCat("inv_freq[", i, "]"), "radians per position in (0, 2 pi)",
                          absl::StrCat(params.inv_freq[i])};
    }
  }
  if (!(params.attention_factor >= 0.01 && params.attention_factor <= 100)) {
    return ParamsDefect{"attention_factor", "a number from 0.01 to 100",
                        absl::StrCat(params.attention_factor)};
  }
  return std::nullopt;
}

absl::Status Validate(const RopeParams& params, int32_t head_dim, absl::string_view path) {
  const auto defect = FindDefect(params, head_dim);
  if (!defect) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ".", defect->field, ": expected ",
                                                 defect->expected, ", got ", defect->got));
}

}  // namespace kvbridge::rope
