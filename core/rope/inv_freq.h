// The published ways to derive a rotation's frequencies, as explicit formulas over explicit
// numbers.
//
// Let d = rotary_dim and f_i = theta^(-2i/d), i < d/2 (Su et al., arXiv 2104.09864). Each scaling
// turns f_i into inv_freq[i] and gives the attention factor by which cos and sin are multiplied (1
// unless said). Every formula is as transformers 5.24 evaluates it in modeling_rope_utils.py, in
// double where that uses FP32, so results agree with engines' tables to about 1e-6 relative, never
// bit for bit.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

#include "core/rope/rope_params.h"

namespace kvbridge::rope {

// inv_freq = f.
struct DefaultScaling {};

// inv_freq = f / factor (position interpolation, arXiv 2306.15595).
struct LinearScaling {
  double factor = 1;
};

// Llama 3.1. With wavelength w = 2 pi / f: f when w < original / high_freq_factor, f / factor when
// w > original / low_freq_factor, and between them (1 - s) f / factor + s f with
// s = (original / w - low) / (high - low).
struct Llama3Scaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position = 8192;
};

// YaRN (arXiv 2309.00071). inv_freq = r f / factor + (1 - r) f, where r rises linearly from 0 to 1
// between pair indices low and high, bound(n) = d ln(original / (2 pi n)) / (2 ln theta), low =
// bound(beta_fast), high = bound(beta_slow), rounded outwards when `truncate`, then clamped to [0,
// d - 1]. Attention factor: as given; else with g(m) = 1 + 0.1 m ln(factor) it is g(mscale) /
// g(mscale_all_dim) when both are given and not zero, and g(1) otherwise. (mscale alone changes
// nothing, and equal ones cancel: confusing the two costs 27 %.)
struct YarnScaling {
  double factor = 1;
  double original_max_position = 0;
  std::optional<double> attention_factor;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
};

// LongRoPE (arXiv 2402.13753). inv_freq[i] = f_i / factors[i]. Engines switch between a short and a
// long list by sequence length, context length or configuration, and old keys keep the list they
// were written with, so only whoever wrote the cache knows which list it holds: `factors` is that
// one. Attention factor: as given; else sqrt(1 + ln(factor) / ln(original)) for factor > 1, and 1
// below, whichever list is used.
struct LongRopeScaling {
  std::vector<double> factors;  // [rotary_dim / 2]
  double factor = 1;            // extended context length / original
  double original_max_position = 0;
  std::optional<double> attention_factor;
};

using RopeScaling =
    std::variant<DefaultScaling, LinearScaling, Llama3Scaling, YarnScaling, LongRopeScaling>;

// INVALID_ARGUMENT names the number that makes no sense: theta not above 1, a factor below 1, a
// list of the wrong length, beta_fast below beta_slow and the like.
absl::StatusOr<RopeParams> MakeRopeParams(double theta, int32_t rotary_dim, Pairing pairing,
                                          const RopeScaling& scaling);

}  // namespace kvbridge::rope
