// What a solve records about itself: the artifact's `calibration` (docs/fit.md).
#pragma once

#include <span>
#include <vector>

#include "core/base/strict_json.h"
#include "core/fit/assemble.h"
#include "core/fit/choose.h"
#include "core/fit/columns.h"
#include "core/fit/selection.h"
#include "core/fit/solve.h"

namespace kvbridge::fit {

struct SolveRecord {
  const Moments* moments = nullptr;
  const SolveOptions* options = nullptr;
  Criterion criterion = Criterion::kHeldOut;
  const ColumnAudit* audit = nullptr;
  const ProbeScores* scores = nullptr;
  // Key and value of layer 0, of layer 1 ...; empty where nothing was traced.
  std::span<const Curve> curves;
  std::span<const SolvedLayer> keys;
  std::span<const SolvedLayer> values;
};

base::Json ToCalibration(const SolveRecord& record);

}  // namespace kvbridge::fit
