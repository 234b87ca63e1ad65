// Which source layers might help which target layer: single-source probes.
//
// A probe regresses one head of one target layer on the same head of one source layer (all heads on
// all heads, where head counts or dimensions differ) and is scored by R2 = 1 - residual / variance;
// a (source layer, target layer) pair by the mean over heads. One factored Gram serves all target
// layers.
//
// Thread contract: pure functions; iterations run on the pool of `loops`.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/columns.h"
#include "core/fit/moments.h"
#include "core/fit/parallel.h"
#include "core/fit/ridge.h"

namespace kvbridge::fit {

struct ProbeOptions {
  Lambda lambda{.value = 1e-3};
  // Score on the rows that were fitted on, all of them (the papers' way), instead of held-out ones.
  bool in_sample = false;
};

// [component][target layer][source], with sources as in system.h.
using ProbeScores = std::array<std::vector<std::vector<double>>, 2>;

absl::StatusOr<ProbeScores> Probe(const Moments& moments, const ColumnAudit& audit,
                                  const ProbeOptions& options, const Loops& loops);

// The mean of both components: what one list for K and V is chosen by.
std::vector<std::vector<double>> JointScores(const ProbeScores& scores);

// Sources by falling score, ties to the lower index.
std::vector<int32_t> RankSources(const std::vector<double>& scores);

}  // namespace kvbridge::fit
