// How fast this machine does what a fit spends its time on. For plans: a short measurement, within
// tens of percents of what a long run sees.
//
// Thread contract: one call at a time in a process; uses OpenBLAS on all its threads for about half
// a second.
#pragma once

namespace kvbridge::fit {

struct Rates {
  double fp32_flops = 0;  // FLOP/s of the products of accumulation
  double fp64_flops = 0;  // FLOP/s of Cholesky factorisations
};
Rates MeasureRates();

}  // namespace kvbridge::fit
