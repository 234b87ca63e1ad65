// How good K or V of one target layer becomes as source layers are added, one by one.
//
// Thread contract: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/columns.h"
#include "core/fit/moments.h"
#include "core/fit/ridge.h"
#include "core/fit/system.h"

namespace kvbridge::fit {

enum class Criterion : uint8_t {
  kHeldOut,  // residual / variance on the held-out rows
  kGcv,      // generalised cross-validation of the rows that were fitted on, over their variance
};
absl::string_view Name(Criterion criterion);  // "held_out", "gcv"

// One map of one target layer and component, judged.
struct Judgement {
  double in_sample = 0;                                        // R2
  double held_out = std::numeric_limits<double>::quiet_NaN();  // R2; NaN where nothing was held out
  double error = 0;  // what the criterion measured; lower is better, 1 = no better than the mean
};

struct CurvePoint {
  mapper::Support support = mapper::Support::kFull;
  std::vector<int32_t> sources;  // as in system.h, in the order they were added
  Lambda lambda;
  int64_t parameters = 0;
  Judgement judged;
};

struct Curve {
  int32_t target_layer = 0;
  kv::Component component = kv::Component::kKey;
  std::vector<CurvePoint> points;  // by number of sources; head-local first where both were traced
};

struct TraceOptions {
  mapper::Support support = mapper::Support::kFull;
  Criterion criterion = Criterion::kHeldOut;
  int32_t max_sources = 8;
  // None: at every point, the best of the grid {1e-6, 1e-5 ... 1} x the Gram's mean diagonal.
  std::optional<Lambda> lambda;
  // False: candidates are taken as they are ordered. True: the one that lowers the error most
  // beside those that are there; ties to the earlier.
  bool greedy = true;
  // How errors of K and V add up where one list serves both.
  std::array<double, 2> component_weight = {1, 1};
  std::stop_token stop;
};

// Fits K or V of `target_layer` from `sources` and judges it. INVALID_ARGUMENT if the criterion is
// kHeldOut and nothing was held out.
absl::StatusOr<Judgement> Judge(const std::vector<Unit>& units, std::span<const int32_t> sources,
                                Lambda lambda, Criterion criterion);

// One curve per component of `components`, along one common order of source layers.
absl::StatusOr<std::vector<Curve>> TraceCurves(const Moments& moments, const ColumnAudit& audit,
                                               int32_t target_layer,
                                               std::span<const kv::Component> components,
                                               const std::vector<int32_t>& candidates,
                                               const TraceOptions& options);

// Weights and biases of a map with this many sources.
int64_t ParameterCount(const Moments& moments, mapper::Support support, int64_t sources);

}  // namespace kvbridge::fit
