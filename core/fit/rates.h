// How fast this machine does what a fit spends its time on. For plans: a short measurement, within
// tens of percents of what a long run sees.
//
// Thread contract: one call at a time in a process; takes every core for about half a second.
#pragma once

#include "absl/status/statusor.h"

namespace kvbridge::fit {

struct Rates {
  double fp32_flops = 0;  // FLOP/s of the products of accumulation, as FP32's are counted
  double fp64_flops = 0;  // FLOP/s of Cholesky factorisations
};
// RESOURCE_EXHAUSTED: no memory or threads for it.
absl::StatusOr<Rates> MeasureRates();

}  // namespace kvbridge::fit
