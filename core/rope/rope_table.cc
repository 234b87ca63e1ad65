#include "core/rope/rope_table.h"

#include <cmath>

namespace kvbridge::rope {

RopeTable::RopeTable(const RopeParams& params, std::span<const int64_t> positions)
    : tokens_(static_cast<int64_t>(positions.size())),
      half_(params.rotary_dim / 2),
      pairing_(params.pairing),
      values_(static_cast<size_t>(tokens_) * 4 * half_) {
  float* out = values_.data();
  for (int64_t position : positions) {
    for (int32_t i = 0; i < half_; ++i) {
      const double angle = static_cast<double>(position) * params.inv_freq[i];
      const auto c = static_cast<float>(params.attention_factor * std::cos(angle));
      const auto s = static_cast<float>(params.attention_factor * std::sin(angle));
      // Of the rounded entries: their determinant, not factor^2, is what apply multiplies by.
      const double determinant = double{c} * c + double{s} * s;
      out[i] = c;
      out[half_ + i] = s;
      out[2 * half_ + i] = static_cast<float>(c / determinant);
      out[3 * half_ + i] = static_cast<float>(s / determinant);
    }
    out += 4 * half_;
  }
}

RopeRow RopeTable::row(int64_t token) const {
  const float* cos = values_.data() + token * 4 * half_;
  return {cos, cos + half_, cos + 2 * half_, cos + 3 * half_, half_, pairing_};
}

}  // namespace kvbridge::rope
