// Percentiles of a sample.
#pragma once

#include <optional>
#include <vector>

namespace kvbridge::base {

// The smallest of `values` that at least `share` of them, 0 to 1, do not exceed; none of none.
std::optional<double> NearestRank(std::vector<double> values, double share);

}  // namespace kvbridge::base
