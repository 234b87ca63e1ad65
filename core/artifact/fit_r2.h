// How well an artifact's fit explained its targets, as the artifact says itself.
#pragma once

#include <limits>

#include "core/artifact/manifest.h"

namespace kvbridge::artifact {

// R2 over the target layers; NaN where nothing is said.
struct R2 {
  double min = std::numeric_limits<double>::quiet_NaN();
  double mean = std::numeric_limits<double>::quiet_NaN();
};

struct FitR2 {
  R2 keys;
  R2 values;
};

// On rows that were held out where there were any, on the fit's own otherwise (those of the
// prototype's artifacts are). Calibration is free-form: what is not understood is not there.
FitR2 FitR2Of(const Provenance& provenance);

}  // namespace kvbridge::artifact
