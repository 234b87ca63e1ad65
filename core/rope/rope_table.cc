#include "core/rope/rope_table.h"

#include <cmath>

namespace kvbridge::rope {

RopeTable::RopeTable(const RopeParams& params, std::span<const int64_t> positions)
    : tokens_(static_cast<int64_t>(positions.size())),
      half_(params.rotary_dim / 2),
      pairing_(params.pairing),
      values_(static_cast<size_t>(tokens_) * 3 * half_) {
  float* cos_out = values_.data();
  for (int64_t position : positions) {
    float* sin_out = cos_out + half_;
    float* scale_out = sin_out + half_;
    for (int32_t i = 0; i < half_; ++i) {
      const double angle = static_cast<double>(position) * params.inv_freq[i];
      const auto c = static_cast<float>(params.attention_factor * std::cos(angle));
      const auto s = static_cast<float>(params.attention_factor * std::sin(angle));
      cos_out[i] = c;
      sin_out[i] = s;
      // Of the rounded entries: their determinant, not factor^2, is what apply multiplies by.
      scale_out[i] = static_cast<float>(1.0 / (double{c} * c + double{s} * s));
    }
    cos_out = scale_out + half_;
  }
}

RopeRow RopeTable::row(int64_t token) const {
  const float* cos = values_.data() + token * 3 * half_;
  return {cos, cos + half_, cos + 2 * half_, half_, pairing_};
}

}  // namespace kvbridge::rope
