// Bootstrap intervals over sequences: how far a figure would move had other texts been drawn.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvbridge::evidence {

// A figure and its two-sided 95 % percentile interval. `value` is of the sample itself.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;
};

// Linear interpolation between order statistics; `sorted` ascending and not empty, 0 <= q <= 1.
double Quantile(std::span<const double> sorted, double q);

// The same draws for every statistic, so that differences between variants are paired. The same n
// and seed give the same draws on every machine. Thread contract: immutable.
class Bootstrap {
 public:
  static constexpr int kDraws = 2000;

  // n: sequences, at least 1.
  explicit Bootstrap(int64_t n, uint64_t seed = 0);

  // A statistic of the sequences with the given indices; one may come several times.
  using Statistic = std::function<double(std::span<const int32_t>)>;
  // Infinities take part: a draw in which the statistic has no value should be the worst one.
  Estimate Interval(const Statistic& statistic) const;
  // Of the mean of one number per sequence.
  Estimate Mean(std::span<const double> values) const;

 private:
  int64_t n_;
  std::vector<int32_t> draws_;  // [kDraws, n]
};

}  // namespace kvbridge::evidence
