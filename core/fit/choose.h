// Choosing one point of every curve.
//
// Each function returns, for every curve, the index of its chosen point.
// Thread contract: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/curve.h"

namespace kvbridge::fit {

// The point of `support` with `sources` source layers, or with the most there are if that is fewer.
std::vector<size_t> ChooseFixed(std::span<const Curve> curves, mapper::Support support,
                                int32_t sources);

// The one number of sources whose mean error over all curves is least, and its support; ties to
// fewer parameters.
std::vector<size_t> ChooseSweep(std::span<const Curve> curves,
                                std::array<double, 2> component_weight);

// Each curve's least error; ties to fewer parameters.
std::vector<size_t> ChooseBest(std::span<const Curve> curves);

// At most `parameters` in all, spent where an error falls most per parameter: every curve starts at
// its cheapest point, then segments of the lower convex hulls of (parameters, weighted error) are
// bought in order of slope. A curve whose next segment does not fit stays where it is; the others
// go on. RESOURCE_EXHAUSTED if the cheapest points do not fit.
absl::StatusOr<std::vector<size_t>> ChooseWithinBudget(std::span<const Curve> curves,
                                                       std::array<double, 2> component_weight,
                                                       int64_t parameters);

int64_t TotalParameters(std::span<const Curve> curves, std::span<const size_t> chosen);

}  // namespace kvbridge::fit
