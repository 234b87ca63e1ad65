// The numbers of one rotation, as they travel on the wire and in artifacts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/rope/rope_row.h"

namespace kvbridge::rope {

absl::string_view Name(Pairing pairing);  // "half", "interleaved"

// The cached key is attention_factor * R(position) * k on the first `rotary_dim` dimensions of a
// head and k on the rest.
struct RopeParams {
  std::vector<double> inv_freq;   // [rotary_dim / 2], radians per position
  double attention_factor = 1.0;  // YaRN and longrope scale cos and sin by it
  int32_t rotary_dim = 0;         // even, <= head_dim; 0 = keys are not rotated
  Pairing pairing = Pairing::kHalf;

  friend bool operator==(const RopeParams&, const RopeParams&) = default;
};

// A field that makes no sense: "inv_freq[3]", "radians per position in (0, 2 pi)", "7".
struct ParamsDefect {
  std::string field;
  std::string expected;
  std::string got;
};

// Sound: rotary_dim is even and within the head, inv_freq has rotary_dim / 2 entries in (0, 2 pi),
// the attention factor lies in [0.01, 100] (published ones lie in [1, 2]; beyond that FP32 tables
// lose digits). nullopt = sound.
std::optional<ParamsDefect> FindDefect(const RopeParams& params, int32_t head_dim);

// The same as a status: INVALID_ARGUMENT names the field under `path`, e.g. "rope.inv_freq[3]".
absl::Status Validate(const RopeParams& params, int32_t head_dim, absl::string_view path);

}  // namespace kvbridge::rope
