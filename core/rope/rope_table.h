// Cosines and sines of one rotation at the positions of a run of tokens.
//
// Angles are products of two doubles: the absolute error is below 2^-53 * position * inv_freq
// radians, 2e-11 at position 131,071 and 2e-7 at 2^31. Cosine and sine are taken in double, scaled
// by the attention factor and rounded once to FP32. Tables built in bf16 repeat every second
// position from 256 on, and FP32 angles are off by 4e-3 radians at 131,071; neither happens here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/rope/rope_params.h"
#include "core/rope/rope_row.h"

namespace kvbridge::rope {

// Immutable after construction; any thread may read. Costs 8 * rotary_dim bytes and rotary_dim / 2
// sine-cosine pairs per token; one table serves every layer and head that shares `params`.
class RopeTable {
 public:
  // `params` is valid (see Validate). Positions are below 2^31, in any order, gaps and repeats
  // allowed.
  RopeTable(const RopeParams& params, std::span<const int64_t> positions);

  int64_t tokens() const { return tokens_; }
  // Borrowed from the table; `token` is an index into `positions`.
  RopeRow row(int64_t token) const;

 private:
  const int64_t tokens_;
  const int32_t half_;
  const Pairing pairing_;
  std::vector<float> values_;  // [tokens][cos, sin, strip_cos, strip_sin][half]
};

}  // namespace kvbridge::rope
