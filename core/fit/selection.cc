#include "core/fit/selection.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/base/status_macros.h"

namespace kvbridge::fit {
namespace {

using kv::Component;

// Units of several target layers that share their features.
struct Bundle {
  Component component = Component::kKey;
  std::vector<int32_t> layers;  // target layers
  std::vector<Run> targets;     // one per layer
  Unit unit;                    // whose features these are
};

absl::StatusOr<std::vector<Bundle>> MakeBundles(const Moments& moments, const ColumnAudit& audit) {
  mapper::Support support = mapper::Support::kHeadLocal;
  if (!UnitsFor(moments, audit, 0, Component::kKey, support).ok()) {
    support = mapper::Support::kFull;
  }
  std::vector<Bundle> bundles;
  for (Component c : kv::kComponents) {
    std::map<std::pair<const MomentGroup*, int32_t>, size_t> known;
    for (int32_t layer = 0; layer < moments.target.geometry.layers; ++layer) {
      KVB_ASSIGN_OR_RETURN(const std::vector<Unit> units,
                           UnitsFor(moments, audit, layer, c, support));
      for (const Unit& unit : units) {
        const auto [at, added] = known.try_emplace({unit.group, unit.head}, bundles.size());
        if (added) bundles.push_back({.component = c, .unit = unit});
        bundles[at->second].layers.push_back(layer);
        bundles[at->second].targets.push_back(unit.targets);
      }
    }
  }
  return bundles;
}

double SumOf(const std::vector<double>& values, int64_t begin, int64_t width) {
  return std::accumulate(values.begin() + begin, values.begin() + begin + width, 0.0);
}

// R2 of each target layer of the bundle.
absl::StatusOr<std::vector<double>> ProbeBundle(const Bundle& bundle, int32_t source,
                                                const ProbeOptions& options) {
  const auto gather = [&](RowSet rows) {
    return Gather(*bundle.unit.group, *bundle.unit.dead, {&bundle.unit.features[source], 1},
                  bundle.targets, rows);
  };
  const System fitted = gather(options.in_sample ? RowSet::kBoth : RowSet::kFit);
  KVB_ASSIGN_OR_RETURN(const Ridge ridge, SolveRidge(fitted, options.lambda));
  const System seen = options.in_sample ? System{} : gather(RowSet::kHeldOut);
  const std::vector<double> residual = options.in_sample
                                           ? FittedResidualSums(fitted, ridge)
                                           : ResidualSums(seen, ridge.weight, ridge.bias);
  const std::vector<double>& variance = options.in_sample ? fitted.target_ss : seen.target_ss;
  std::vector<double> scores;
  int64_t begin = 0;
  for (const Run& run : bundle.targets) {
    scores.push_back(
        RSquared(SumOf(residual, begin, run.width), SumOf(variance, begin, run.width)));
    begin += run.width;
  }
  return scores;
}

}  // namespace

absl::StatusOr<ProbeScores> Probe(const Moments& moments, const ColumnAudit& audit,
                                  const ProbeOptions& options, const Loops& loops) {
  KVB_ASSIGN_OR_RETURN(const std::vector<Bundle> bundles, MakeBundles(moments, audit));
  const auto sources = static_cast<int64_t>(bundles.front().unit.features.size());
  std::vector<std::vector<double>> found(bundles.size() * static_cast<size_t>(sources));
  KVB_RETURN_IF_ERROR(
      ForEach(loops, "probing", static_cast<int64_t>(found.size()), [&](int64_t i) -> absl::Status {
        KVB_ASSIGN_OR_RETURN(found[i], ProbeBundle(bundles[i / sources],
                                                   static_cast<int32_t>(i % sources), options));
        return absl::OkStatus();
      }));
  ProbeScores scores;
  ProbeScores heads;
  for (auto* of : {&scores, &heads}) {
    for (auto& component : *of) {
      component.assign(moments.target.geometry.layers, std::vector<double>(sources));
    }
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const Bundle& bundle = bundles[i / sources];
    const auto c = static_cast<size_t>(bundle.component);
    for (size_t l = 0; l < bundle.layers.size(); ++l) {
      scores[c][bundle.layers[l]][i % sources] += found[i][l];
      heads[c][bundle.layers[l]][i % sources] += 1;
    }
  }
  for (size_t c = 0; c < scores.size(); ++c) {
    for (size_t l = 0; l < scores[c].size(); ++l) {
      for (int64_t j = 0; j < sources; ++j) scores[c][l][j] /= heads[c][l][j];
    }
  }
  return scores;
}

std::vector<std::vector<double>> JointScores(const ProbeScores& scores) {
  std::vector<std::vector<double>> joint = scores[0];
  for (size_t l = 0; l < joint.size(); ++l) {
    for (size_t j = 0; j < joint[l].size(); ++j) joint[l][j] = (joint[l][j] + scores[1][l][j]) / 2;
  }
  return joint;
}

std::vector<int32_t> RankSources(const std::vector<double>& scores) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  return order;
}

}  // namespace kvbridge::fit
