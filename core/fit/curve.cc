#include "core/fit/curve.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/status_macros.h"

namespace kvbridge::fit {
namespace {

using kv::Component;

// The grid of lambdas, as powers of ten of the mean diagonal.
constexpr int kLowestPower = -6;
constexpr int kHighestPower = 0;
constexpr int kFirstPower = -3;

// The error of what cannot be judged, such as more freedom than rows: finite, so that it compares.
constexpr double kHopeless = 1e6;

Lambda Power(int power) { return {.value = std::pow(10.0, power)}; }

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// The systems of one choice of sources, gathered once for every lambda.
class Candidate {
 public:
  Candidate(const std::vector<Unit>& units, std::span<const int32_t> sources, Criterion criterion)
      : criterion_(criterion) {
    for (const Unit& unit : units) {
      fitted_.push_back(Gather(unit, sources, RowSet::kFit));
      if (unit.group->held_out.rows > 0) {
        held_out_.push_back(Gather(unit, sources, RowSet::kHeldOut));
      }
    }
  }

  absl::StatusOr<Judgement> At(Lambda lambda) const {
    double fit_rss = 0, fit_ss = 0, held_rss = 0, held_ss = 0, gcv = 0, variance = 0;
    for (size_t u = 0; u < fitted_.size(); ++u) {
      const System& system = fitted_[u];
      KVB_ASSIGN_OR_RETURN(const Ridge ridge, SolveRidge(system, lambda));
      const double rss = Sum(FittedResidualSums(system, ridge));
      fit_rss += rss;
      fit_ss += Sum(system.target_ss);
      if (criterion_ == Criterion::kGcv) {
        gcv += GeneralisedCrossValidation(system, ridge, rss);
        variance += Sum(system.target_ss) / static_cast<double>(system.rows);
      }
      if (held_out_.empty()) continue;
      held_rss += Sum(ResidualSums(held_out_[u], ridge.weight, ridge.bias));
      held_ss += Sum(held_out_[u].target_ss);
    }
    Judgement judged{.in_sample = RSquared(fit_rss, fit_ss)};
    if (!held_out_.empty()) judged.held_out = RSquared(held_rss, held_ss);
    const double error =
        1 - (criterion_ == Criterion::kGcv ? RSquared(gcv, variance) : judged.held_out);
    judged.error = std::min(error, kHopeless);
    return judged;
  }

 private:
  const Criterion criterion_;
  std::vector<System> fitted_;
  std::vector<System> held_out_;
};

struct Tuned {
  Lambda lambda;
  Judgement judged;
};

// Downhill from `power` over the grid: errors have one valley in lambda.
absl::StatusOr<Tuned> TuneLambda(const Candidate& candidate, int power) {
  KVB_ASSIGN_OR_RETURN(Judgement best, candidate.At(Power(power)));
  const int start = power;
  for (const int step : {1, -1}) {
    if (power != start) break;
    for (int next = power + step; next >= kLowestPower && next <= kHighestPower; next += step) {
      KVB_ASSIGN_OR_RETURN(const Judgement judged, candidate.At(Power(next)));
      if (!(judged.error < best.error)) break;
      best = judged;
      power = next;
    }
  }
  return Tuned{.lambda = Power(power), .judged = best};
}

// What the components of one common order have found so far.
struct Track {
  std::vector<Unit> units;
  Lambda lambda;
  Curve curve;
};

// The candidate that leaves the least error beside `chosen`.
absl::StatusOr<size_t> BestNext(const std::vector<Track>& tracks,
                                const std::vector<int32_t>& chosen,
                                const std::vector<int32_t>& candidates,
                                const TraceOptions& options) {
  size_t best = 0;
  double best_error = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (options.stop.stop_requested()) return absl::CancelledError("interrupted");
    std::vector<int32_t> sources = chosen;
    sources.push_back(candidates[i]);
    double error = 0;
    for (const Track& track : tracks) {
      const Candidate candidate(track.units, sources, options.criterion);
      KVB_ASSIGN_OR_RETURN(const Judgement judged, candidate.At(track.lambda));
      error += options.component_weight[static_cast<size_t>(track.curve.component)] * judged.error;
    }
    if (error < best_error) {
      best = i;
      best_error = error;
    }
  }
  return best;
}

absl::Status AddPoint(const Moments& moments, const std::vector<int32_t>& sources,
                      const TraceOptions& options, Track& track) {
  const Candidate candidate(track.units, sources, options.criterion);
  Tuned tuned{.lambda = track.lambda};
  if (options.lambda) {
    KVB_ASSIGN_OR_RETURN(tuned.judged, candidate.At(track.lambda));
  } else {
    const int power = static_cast<int>(std::lround(std::log10(track.lambda.value)));
    KVB_ASSIGN_OR_RETURN(tuned, TuneLambda(candidate, power));
  }
  track.lambda = tuned.lambda;
  track.curve.points.push_back(
      {.support = options.support,
       .sources = sources,
       .lambda = tuned.lambda,
       .parameters = ParameterCount(moments, options.support, static_cast<int64_t>(sources.size())),
       .judged = tuned.judged});
  return absl::OkStatus();
}

}  // namespace

absl::string_view Name(Criterion criterion) {
  return criterion == Criterion::kHeldOut ? "held_out" : "gcv";
}

absl::StatusOr<Judgement> Judge(const std::vector<Unit>& units, std::span<const int32_t> sources,
                                Lambda lambda, Criterion criterion) {
  return Candidate(units, sources, criterion).At(lambda);
}

absl::StatusOr<std::vector<Curve>> TraceCurves(const Moments& moments, const ColumnAudit& audit,
                                               int32_t target_layer,
                                               std::span<const Component> components,
                                               const std::vector<int32_t>& candidates,
                                               const TraceOptions& options) {
  std::vector<Track> tracks;
  for (Component c : components) {
    KVB_ASSIGN_OR_RETURN(std::vector<Unit> units,
                         UnitsFor(moments, audit, target_layer, c, options.support));
    tracks.push_back({.units = std::move(units),
                      .lambda = options.lambda.value_or(Power(kFirstPower)),
                      .curve = {.target_layer = target_layer, .component = c}});
  }
  std::vector<int32_t> left = candidates;
  std::vector<int32_t> chosen;
  while (!left.empty() && static_cast<int32_t>(chosen.size()) < options.max_sources) {
    size_t next = 0;
    if (options.greedy && left.size() > 1) {
      KVB_ASSIGN_OR_RETURN(next, BestNext(tracks, chosen, left, options));
    }
    if (options.stop.stop_requested()) return absl::CancelledError("interrupted");
    chosen.push_back(left[next]);
    left.erase(left.begin() + static_cast<int64_t>(next));
    for (Track& track : tracks) KVB_RETURN_IF_ERROR(AddPoint(moments, chosen, options, track));
  }
  std::vector<Curve> curves;
  for (Track& track : tracks) curves.push_back(std::move(track.curve));
  return curves;
}

int64_t ParameterCount(const Moments& moments, mapper::Support support, int64_t sources) {
  const int64_t features =
      sources * (support == mapper::Support::kFull ? moments.source.geometry.row()
                                                   : moments.source.geometry.head_dim);
  return moments.target.geometry.row() * (features + 1);
}

}  // namespace kvbridge::fit
