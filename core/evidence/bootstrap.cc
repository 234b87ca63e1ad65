#include "core/evidence/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace kvbridge::evidence {

double Quantile(std::span<const double> sorted, double q) {
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  // Equal infinities have no difference to interpolate.
  if (sorted[below] == sorted[above]) return sorted[below];
  return sorted[below] + (place - std::floor(place)) * (sorted[above] - sorted[below]);
}

Bootstrap::Bootstrap(int64_t n, uint64_t seed) : n_(n), draws_(kDraws * n) {
  // The standard fixes the engine's numbers, not those of its distributions.
  std::mt19937_64 engine(seed);
  for (int32_t& draw : draws_) {
    draw = static_cast<int32_t>(static_cast<unsigned __int128>(engine()) * n >> 64);
  }
}

Estimate Bootstrap::Interval(const Statistic& statistic) const {
  std::vector<int32_t> everything(n_);
  std::iota(everything.begin(), everything.end(), 0);
  std::vector<double> drawn(kDraws);
  for (int i = 0; i < kDraws; ++i) {
    drawn[i] = statistic(std::span(draws_).subspan(i * n_, n_));
  }
  std::sort(drawn.begin(), drawn.end());
  return {statistic(everything), Quantile(drawn, 0.025), Quantile(drawn, 0.975)};
}

Estimate Bootstrap::Mean(std::span<const double> values) const {
  return Interval([values](std::span<const int32_t> indices) {
    double sum = 0;
    for (const int32_t i : indices) sum += values[i];
    return sum / static_cast<double>(indices.size());
  });
}

}  // namespace kvbridge::evidence
