#include "core/fit/solve.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"

#include "core/base/exact.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/base/worker_pool.h"
#include "core/fit/assemble.h"
#include "core/fit/choose.h"
#include "core/fit/record.h"
#include "core/fit/selection.h"

namespace kvbridge::fit {
namespace {

using kv::Component;
using mapper::Support;

// A list of head-local layers may be this much longer: its maps are smaller by the number of heads.
constexpr int32_t kHeadLocalStretch = 2;
// Full-head lists of more columns than this get their order from matched heads.
constexpr int64_t kMostGreedyColumns = 2048;
// Greedy steps look at this many candidates per place in the list, the best by their probes.
constexpr int32_t kCandidatesPerPlace = 2;
constexpr int32_t kLeastCandidates = 8;

absl::Status CheckPositive(absl::string_view field, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("fit.", field, ": expected at least 1, got ", value));
}

absl::Status CheckOptions(const Moments& moments, const SolveOptions& options) {
  if (moments.groups.empty()) {
    return absl::InvalidArgumentError("moments.groups: expected at least 1, got 0");
  }
  KVB_RETURN_IF_ERROR(CheckPositive("k", options.k));
  KVB_RETURN_IF_ERROR(CheckPositive("max_k", options.max_k));
  for (double weight : options.component_weight) {
    if (weight > 0 && std::isfinite(weight)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "fit.component_weight: expected a finite number above 0, got ", base::Exact(weight)));
  }
  if (options.lambda && !(options.lambda->value >= 0 && std::isfinite(options.lambda->value))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fit.lambda: expected a finite number, 0 or more, got ", options.lambda->value));
  }
  return absl::OkStatus();
}

// One run of Solve: what its steps share.
class Solver {
 public:
  Solver(const Moments& moments, const SolveOptions& options)
      : moments_(moments), options_(options) {}

  absl::StatusOr<Solution> Run() {
    KVB_ASSIGN_OR_RETURN(audit_, AuditColumns(moments_));
    KVB_ASSIGN_OR_RETURN(supports_, Supports());
    sources_ = moments_.source.geometry.layers;
    if (options_.cross && moments_.layout == Layout::kJoint) sources_ *= 2;
    criterion_ = moments_.groups.front().held_out.rows > 0 ? Criterion::kHeldOut : Criterion::kGcv;
    KVB_RETURN_IF_ERROR(StartPool());
    const SingleThreadedBlas blas;
    const ProbeOptions probe = {
        .lambda = options_.probe_lambda,
        .in_sample = options_.probe_in_sample || criterion_ == Criterion::kGcv};
    KVB_ASSIGN_OR_RETURN(scores_, Probe(moments_, audit_, probe, loops_));
    const bool traced = NeedsCurves();
    if (traced) {
      KVB_RETURN_IF_ERROR(Trace());
    } else {
      TakeProbeLists();
    }
    KVB_ASSIGN_OR_RETURN(const std::vector<size_t> chosen, Choose());
    KVB_RETURN_IF_ERROR(SolveChosen(chosen));
    return Finish(traced);
  }

 private:
  int32_t target_layers() const { return moments_.target.geometry.layers; }
  int64_t dtype_bytes() const { return static_cast<int64_t>(tensor::ByteSize(options_.dtype)); }
  Curve& curve(int32_t layer, Component c) {
    return curves_[static_cast<size_t>(2 * layer + static_cast<int>(c))];
  }

  // The supports that are asked for and that the moments can answer.
  absl::StatusOr<std::vector<Support>> Supports() const {
    std::vector<Support> found;
    absl::Status missing;
    for (const Support support : {Support::kFull, Support::kHeadLocal}) {
      const bool wanted = options_.support == SupportRule::kAuto ||
                          (options_.support == SupportRule::kFull) == (support == Support::kFull);
      if (!wanted) continue;
      const auto units = UnitsFor(moments_, audit_, 0, Component::kKey, support);
      if (units.ok()) {
        found.push_back(support);
      } else {
        missing = units.status();
      }
    }
    if (found.empty()) return missing;
    return found;
  }

  int32_t MaxSources(Support support) const {
    const int32_t places = options_.choice == ChoiceRule::kFixed ? options_.k : options_.max_k;
    const bool stretch = support == Support::kHeadLocal && supports_.size() > 1;
    return std::min(sources_, stretch ? kHeadLocalStretch * places : places);
  }

  // As many threads as there are processors and as the memory allows.
  absl::Status StartPool() {
    int64_t workspace = 0;
    for (Support support : supports_) {
      const bool full = support == Support::kFull;
      const model::KvGeometry& source = moments_.source.geometry;
      const model::KvGeometry& target = moments_.target.geometry;
      workspace = std::max(
          workspace, WorkspaceBytes(MaxSources(support) * (full ? source.row() : source.head_dim),
                                    full ? target.row() : target.head_dim));
    }
    int64_t threads = options_.threads > 0 ? options_.threads : std::thread::hardware_concurrency();
    if (options_.memory_bytes > 0) {
      const int64_t weights = 2 * target_layers() * dtype_bytes() *
                              ParameterCount(moments_, supports_[0], MaxSources(supports_[0]));
      const int64_t room = options_.memory_bytes - weights;
      if (room < workspace) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "fit.memory: expected at least ", base::HumanBytes(uint64_t(weights + workspace)), " (",
            base::HumanBytes(uint64_t(weights)), " of weights and ",
            base::HumanBytes(uint64_t(workspace)), " to solve one layer), got ",
            base::HumanBytes(uint64_t(options_.memory_bytes))));
      }
      threads = std::min(threads, room / workspace);
    }
    // The caller works too: one thread needs no pool.
    if (threads > 1) {
      KVB_ASSIGN_OR_RETURN(pool_,
                           base::WorkerPool::Create({.threads = static_cast<int>(threads - 1)}));
    }
    loops_ = {.pool = pool_.get(), .stop = options_.stop, .progress = options_.progress};
    return absl::OkStatus();
  }

  bool NeedsCurves() const {
    return options_.order == Order::kForward || options_.choice != ChoiceRule::kFixed ||
           !options_.lambda || supports_.size() > 1;
  }

  // Sources in the order of their probes.
  std::vector<int32_t> Ranked(int32_t layer, Component c) const {
    std::vector<double> scores =
        options_.joint_lists ? JointScores(scores_)[layer] : scores_[static_cast<size_t>(c)][layer];
    scores.resize(static_cast<size_t>(sources_));
    return RankSources(scores);
  }

  void TakeProbeLists() {
    const Support support = supports_.front();
    curves_.resize(static_cast<size_t>(2 * target_layers()));
    for (int32_t layer = 0; layer < target_layers(); ++layer) {
      for (Component c : kv::kComponents) {
        std::vector<int32_t> sources = Ranked(layer, c);
        sources.resize(static_cast<size_t>(MaxSources(support)));
        const auto count = static_cast<int64_t>(sources.size());
        curve(layer, c) = {.target_layer = layer,
                           .component = c,
                           .points = {{.support = support,
                                       .sources = std::move(sources),
                                       .lambda = *options_.lambda,
                                       .parameters = ParameterCount(moments_, support, count)}}};
      }
    }
  }

  absl::StatusOr<std::vector<Curve>> TraceSupport(int32_t layer,
                                                  std::span<const Component> components,
                                                  const std::vector<int32_t>& candidates,
                                                  Support support, int32_t max_sources,
                                                  bool greedy) const {
    const TraceOptions trace = {.support = support,
                                .criterion = criterion_,
                                .max_sources = max_sources,
                                .lambda = options_.lambda,
                                .greedy = greedy,
                                .component_weight = options_.component_weight,
                                .stop = options_.stop};
    return TraceCurves(moments_, audit_, layer, components, candidates, trace);
  }

  void Keep(std::vector<Curve> traced) {
    for (Curve& part : traced) {
      Curve& whole = curve(part.target_layer, part.component);
      whole.target_layer = part.target_layer;
      whole.component = part.component;
      for (CurvePoint& point : part.points) whole.points.push_back(std::move(point));
    }
  }

  // Greedy steps of large models are taken on matched heads where there are any: systems smaller by
  // the number of heads. Full-head maps then follow their order.
  absl::Status TraceTask(int32_t layer, std::span<const Component> components) {
    const bool full = supports_.front() == Support::kFull;
    const bool local = supports_.back() == Support::kHeadLocal;
    bool greedy = options_.order == Order::kForward;
    const bool matched =
        MaxSources(Support::kFull) * moments_.source.geometry.row() > kMostGreedyColumns &&
        UnitsFor(moments_, audit_, layer, components.front(), Support::kHeadLocal).ok();
    const int32_t longest = MaxSources(local ? Support::kHeadLocal : Support::kFull);
    std::vector<int32_t> candidates = Ranked(layer, components.front());
    const auto looked_at = static_cast<size_t>(
        std::max(kLeastCandidates, kCandidatesPerPlace * MaxSources(supports_.front())));
    if (candidates.size() > looked_at) candidates.resize(looked_at);
    if (local || (greedy && matched)) {
      KVB_ASSIGN_OR_RETURN(
          std::vector<Curve> traced,
          TraceSupport(layer, components, candidates, Support::kHeadLocal, longest, greedy));
      if (matched && greedy) {
        candidates = traced.front().points.back().sources;
        greedy = false;
      }
      if (local) Keep(std::move(traced));
    }
    if (full) {
      KVB_ASSIGN_OR_RETURN(std::vector<Curve> traced,
                           TraceSupport(layer, components, candidates, Support::kFull,
                                        MaxSources(Support::kFull), greedy));
      Keep(std::move(traced));
    }
    return absl::OkStatus();
  }

  absl::Status Trace() {
    curves_.resize(static_cast<size_t>(2 * target_layers()));
    const std::span<const Component> both(kv::kComponents);
    if (options_.joint_lists) {
      return ForEach(loops_, "choosing layers", target_layers(),
                     [&](int64_t l) { return TraceTask(static_cast<int32_t>(l), both); });
    }
    return ForEach(loops_, "choosing layers", 2 * target_layers(), [&](int64_t i) {
      return TraceTask(static_cast<int32_t>(i / 2), both.subspan(static_cast<size_t>(i % 2), 1));
    });
  }

  absl::StatusOr<std::vector<size_t>> Choose() const {
    const auto& weight = options_.component_weight;
    switch (options_.choice) {
      case ChoiceRule::kBest:
        return ChooseBest(curves_);
      case ChoiceRule::kSweep:
        return ChooseSweep(curves_, weight);
      case ChoiceRule::kBudget:
        return ChooseWithinBudget(curves_, weight, options_.budget_bytes / dtype_bytes());
      case ChoiceRule::kFixed:
        break;
    }
    const std::vector<size_t> fixed = ChooseFixed(curves_, supports_.front(), options_.k);
    if (supports_.size() == 1) return fixed;
    return ChooseWithinBudget(curves_, weight, TotalParameters(curves_, fixed));
  }

  absl::Status SolveChosen(const std::vector<size_t>& chosen) {
    keys_.resize(static_cast<size_t>(target_layers()));
    values_.resize(keys_.size());
    const FinalOptions final = {.refit = options_.refit, .dtype = options_.dtype};
    return ForEach(
        loops_, "solving", static_cast<int64_t>(curves_.size()), [&](int64_t i) -> absl::Status {
          const Curve& from = curves_[i];
          CurvePoint point = from.points[chosen[i]];
          // The order of a mapper's features: the component itself, then the other.
          std::stable_partition(point.sources.begin(), point.sources.end(), [&](int32_t source) {
            return source < moments_.source.geometry.layers;
          });
          KVB_ASSIGN_OR_RETURN(
              const std::vector<Unit> units,
              UnitsFor(moments_, audit_, from.target_layer, from.component, point.support));
          auto& layers = from.component == Component::kKey ? keys_ : values_;
          KVB_ASSIGN_OR_RETURN(
              layers[from.target_layer],
              SolveLayer(units, moments_.target.geometry, std::move(point), final));
          return absl::OkStatus();
        });
  }

  artifact::LambdaConvention Convention() const {
    return options_.lambda ? options_.lambda->convention : Lambda{}.convention;
  }

  // The manifest has room for one.
  double MedianLambda() const {
    std::vector<double> values;
    for (const auto* layers : {&keys_, &values_}) {
      for (const SolvedLayer& layer : *layers) values.push_back(layer.point.lambda.value);
    }
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
  }

  absl::StatusOr<Solution> Finish(bool traced) {
    Solution solution;
    solution.provenance = {.lambda = MedianLambda(), .lambda_convention = Convention()};
    solution.provenance.calibration = ToCalibration(
        {.moments = &moments_,
         .options = &options_,
         .criterion = criterion_,
         .audit = &audit_,
         .scores = &scores_,
         .curves = traced ? std::span<const Curve>(curves_) : std::span<const Curve>(),
         .keys = keys_,
         .values = values_});
    solution.mapper = AssembleMapper(moments_, keys_, values_, options_.key_norm, options_.dtype);
    return solution;
  }

  const Moments& moments_;
  const SolveOptions& options_;
  ColumnAudit audit_;
  std::vector<Support> supports_;
  int32_t sources_ = 0;  // that a map may read
  Criterion criterion_ = Criterion::kHeldOut;
  std::unique_ptr<base::WorkerPool> pool_;
  Loops loops_;
  ProbeScores scores_;
  std::vector<Curve> curves_;  // key and value of layer 0, of layer 1 ...
  std::vector<SolvedLayer> keys_;
  std::vector<SolvedLayer> values_;
};

}  // namespace

SolveOptions PrototypeOptions(int32_t k) {
  constexpr auto kRaw = artifact::LambdaConvention::kRawGram;
  SolveOptions options;
  options.order = Order::kProbe;
  options.joint_lists = true;
  options.cross = false;
  options.support = SupportRule::kFull;
  options.choice = ChoiceRule::kFixed;
  options.k = k;
  options.lambda = Lambda{.value = 0.01, .convention = kRaw};
  options.probe_lambda = {.value = 1e-6, .convention = kRaw};
  options.probe_in_sample = true;
  options.dtype = tensor::DType::kF32;
  return options;
}

absl::StatusOr<Solution> Solve(const Moments& moments, const SolveOptions& options) {
  KVB_RETURN_IF_ERROR(CheckOptions(moments, options));
  return Solver(moments, options).Run();
}

int64_t WorkspaceBytes(int64_t features, int64_t targets) {
  // Gram of both splits, factor and one copy; cross, weights, rounded and errors of both ways.
  return int64_t{sizeof(double)} * (4 * features * features + 8 * features * targets);
}

}  // namespace kvbridge::fit
