#include "core/rope/inv_freq.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "core/base/status_macros.h"

namespace kvbridge::rope {
namespace {

// What a scaling needs to know about the rotation that it scales.
struct Base {
  double theta;
  int32_t rotary_dim;
  std::vector<double> freq;  // unscaled, [rotary_dim / 2]
};

absl::Status Require(bool holds, absl::string_view field, absl::string_view expected, double got) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected ", expected, ", got ", got));
}

absl::Status RequireFactor(double factor) {
  return Require(factor >= 1 && std::isfinite(factor), "factor", "a finite number >= 1", factor);
}

absl::Status RequireOriginal(double original) {
  return Require(original > 1 && std::isfinite(original), "original_max_position_embeddings",
                 "a number above 1", original);
}

absl::Status RequireAttentionFactor(const std::optional<double>& factor) {
  if (!factor) return absl::OkStatus();
  return Require(*factor > 0 && std::isfinite(*factor), "attention_factor",
                 "a finite number above 0", *factor);
}

absl::StatusOr<RopeParams> Scale(const Base& base, const DefaultScaling&) {
  RopeParams out;
  out.inv_freq = base.freq;
  return out;
}

absl::StatusOr<RopeParams> Scale(const Base& base, const LinearScaling& linear) {
  KVB_RETURN_IF_ERROR(RequireFactor(linear.factor));
  RopeParams out;
  for (double f : base.freq) out.inv_freq.push_back(f / linear.factor);
  return out;
}

absl::StatusOr<RopeParams> Scale(const Base& base, const Llama3Scaling& llama3) {
  const double low = llama3.low_freq_factor, high = llama3.high_freq_factor;
  KVB_RETURN_IF_ERROR(RequireFactor(llama3.factor));
  KVB_RETURN_IF_ERROR(RequireOriginal(llama3.original_max_position));
  KVB_RETURN_IF_ERROR(Require(low > 0, "low_freq_factor", "a number above 0", low));
  KVB_RETURN_IF_ERROR(Require(high > low && std::isfinite(high), "high_freq_factor",
                              absl::StrCat("a finite number above low_freq_factor = ", low), high));
  RopeParams out;
  for (double f : base.freq) {
    const double turns = llama3.original_max_position * f / (2 * M_PI);  // original / wavelength
    const double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    out.inv_freq.push_back((1 - keep) * f / llama3.factor + keep * f);
  }
  return out;
}

double YarnAttentionFactor(const YarnScaling& yarn) {
  if (yarn.attention_factor) return *yarn.attention_factor;
  const auto gain = [&](double m) { return 1 + 0.1 * m * std::log(yarn.factor); };
  const double numerator = yarn.mscale.value_or(0), denominator = yarn.mscale_all_dim.value_or(0);
  if (numerator != 0 && denominator != 0) return gain(numerator) / gain(denominator);
  return gain(1);
}

absl::StatusOr<RopeParams> Scale(const Base& base, const YarnScaling& yarn) {
  KVB_RETURN_IF_ERROR(RequireFactor(yarn.factor));
  KVB_RETURN_IF_ERROR(RequireOriginal(yarn.original_max_position));
  KVB_RETURN_IF_ERROR(RequireAttentionFactor(yarn.attention_factor));
  KVB_RETURN_IF_ERROR(Require(yarn.beta_slow > 0, "beta_slow", "a number above 0", yarn.beta_slow));
  KVB_RETURN_IF_ERROR(
      Require(yarn.beta_fast >= yarn.beta_slow && std::isfinite(yarn.beta_fast), "beta_fast",
              absl::StrCat("a finite number >= beta_slow = ", yarn.beta_slow), yarn.beta_fast));
  // The pair index (not an integer) whose wave turns `rotations` times in the original context.
  const auto bound = [&](double rotations) {
    return base.rotary_dim * std::log(yarn.original_max_position / (rotations * 2 * M_PI)) /
           (2 * std::log(base.theta));
  };
  double low = bound(yarn.beta_fast), high = bound(yarn.beta_slow);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min<double>(high, base.rotary_dim - 1);
  if (low == high) high += 0.001;  // the published guard against a ramp of no width

  RopeParams out;
  for (size_t i = 0; i < base.freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    out.inv_freq.push_back(ramp * base.freq[i] / yarn.factor + (1 - ramp) * base.freq[i]);
  }
  out.attention_factor = YarnAttentionFactor(yarn);
  return out;
}

absl::StatusOr<RopeParams> Scale(const Base& base, const LongRopeScaling& longrope) {
  KVB_RETURN_IF_ERROR(RequireOriginal(longrope.original_max_position));
  KVB_RETURN_IF_ERROR(RequireAttentionFactor(longrope.attention_factor));
  KVB_RETURN_IF_ERROR(Require(longrope.factor > 0 && std::isfinite(longrope.factor), "factor",
                              "a finite number above 0", longrope.factor));
  KVB_RETURN_IF_ERROR(Require(longrope.factors.size() == base.freq.size(), "longrope factor list",
                              absl::StrCat(base.freq.size(), " entries (rotary_dim / 2)"),
                              static_cast<double>(longrope.factors.size())));
  RopeParams out;
  for (size_t i = 0; i < base.freq.size(); ++i) {
    const double factor = longrope.factors[i];
    KVB_RETURN_IF_ERROR(Require(factor > 0 && std::isfinite(factor),
                                absl::StrCat("longrope factor list[", i, "]"),
                                "a finite number above 0", factor));
    out.inv_freq.push_back(base.freq[i] / factor);
  }
  if (longrope.attention_factor) {
    out.attention_factor = *longrope.attention_factor;
  } else if (longrope.factor > 1) {
    out.attention_factor =
        std::sqrt(1 + std::log(longrope.factor) / std::log(longrope.original_max_position));
  }
  return out;
}

}  // namespace

absl::StatusOr<RopeParams> MakeRopeParams(double theta, int32_t rotary_dim, Pairing pairing,
                                          const RopeScaling& scaling) {
  KVB_RETURN_IF_ERROR(
      Require(theta > 1 && std::isfinite(theta), "rope_theta", "a finite number above 1", theta));
  KVB_RETURN_IF_ERROR(Require(rotary_dim > 0 && rotary_dim % 2 == 0, "rotary_dim",
                              "an even number above 0", rotary_dim));
  Base base{theta, rotary_dim, {}};
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    base.freq.push_back(std::pow(theta, -2.0 * i / rotary_dim));
  }
  KVB_ASSIGN_OR_RETURN(RopeParams out,
                       std::visit([&](const auto& kind) { return Scale(base, kind); }, scaling));
  out.rotary_dim = rotary_dim;
  out.pairing = pairing;
  KVB_RETURN_IF_ERROR(Validate(out, rotary_dim, "rope"));
  return out;
}

}  // namespace kvbridge::rope
