#include "core/base/nearest_rank.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace kvbridge::base {

std::optional<double> NearestRank(std::vector<double> values, double share) {
  if (values.empty()) return std::nullopt;
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

}  // namespace kvbridge::base
