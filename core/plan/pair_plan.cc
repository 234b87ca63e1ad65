#include "core/plan/pair_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::plan {
namespace {

constexpr int64_t kSplits = 2;
constexpr int64_t kLambdas = 3;  // of the grid that a descent from its middle looks at, about

absl::Status Check(absl::string_view field, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected at least ", least, ", got ", value));
}

absl::Status Validate(const PairPlanInput& in) {
  for (const auto& [role, g] : {std::pair{"source", &in.source}, std::pair{"target", &in.target}}) {
    KVB_RETURN_IF_ERROR(Check(absl::StrCat(role, ".layers"), g->layers, 1));
    KVB_RETURN_IF_ERROR(Check(absl::StrCat(role, ".kv_heads"), g->kv_heads, 1));
    KVB_RETURN_IF_ERROR(Check(absl::StrCat(role, ".head_dim"), g->head_dim, 1));
  }
  KVB_RETURN_IF_ERROR(Check("sequences", in.sequences, 1));
  KVB_RETURN_IF_ERROR(Check("length", in.length, 1));
  KVB_RETURN_IF_ERROR(Check("stride", in.stride, 1));
  KVB_RETURN_IF_ERROR(Check("k", in.k, 1));
  if (in.head_local && in.source.kv_heads != in.target.kv_heads) {
    return absl::FailedPreconditionError(absl::StrCat("head_local: expected equal kv heads, got ",
                                                      in.source.kv_heads, " and ",
                                                      in.target.kv_heads));
  }
  return absl::OkStatus();
}

// Columns of one group, and how many groups there are.
struct Shape {
  int64_t features;
  int64_t targets;
  int64_t groups;
};
Shape ShapeOf(const PairPlanInput& in) {
  const int64_t heads = in.head_local ? in.source.kv_heads : 1;
  return {in.source.layers * in.source.row() / heads, in.target.layers * in.target.row() / heads,
          2 * heads};
}

class Plan {
 public:
  void Exact(const char* stage, const char* name, double value, const char* unit, std::string how) {
    list_.push_back({stage, name, value, unit, Provenance::kDerived, std::move(how)});
  }
  // `work` at `rate` per second.
  void Time(const char* stage, double work, std::optional<double> rate, Provenance provenance,
            std::string how) {
    Quantity q{stage, "time", std::nullopt, "seconds", Provenance::kUnmeasured, std::move(how)};
    if (rate && *rate > 0) {
      q.value = work / *rate;
      q.provenance = provenance;
    }
    list_.push_back(std::move(q));
  }
  void Add(Quantity quantity) { list_.push_back(std::move(quantity)); }
  std::vector<Quantity> Take() { return std::move(list_); }

 private:
  std::vector<Quantity> list_;
};

std::optional<double> Stated(double rate) {
  return rate > 0 ? std::optional<double>(rate) : std::nullopt;
}

// Source layers of every list; features per target column.
int64_t Sources(const PairPlanInput& in) { return std::min(in.k, in.source.layers); }
int64_t Features(const PairPlanInput& in) {
  return Sources(in) * (in.head_local ? in.source.head_dim : in.source.row());
}

void PlanCapture(const PairPlanInput& in, int64_t rows, Plan* plan) {
  const double tokens = static_cast<double>(in.sequences) * static_cast<double>(in.length);
  plan->Exact("capture", "tokens", tokens, "tokens", "sequences x length, read by both models");
  plan->Exact("capture", "rows", static_cast<double>(rows), "rows", "every stride-th token");
  const double row_bytes =
      2.0 * 2 * (in.source.layers * in.source.row() + in.target.layers * in.target.row());
  plan->Exact("capture", "disk", static_cast<double>(rows) * row_bytes, "bytes",
              "shards: K and V of both models, BF16; none with --no-store");
  plan->Time("capture", tokens, Stated(in.capture_tokens_per_second), Provenance::kStated,
             "at the stated rate of both models reading (--capture-rate)");
}

void PlanAccumulate(const PairPlanInput& in, int64_t rows, Plan* plan) {
  const Shape shape = ShapeOf(in);
  const auto p = static_cast<double>(shape.features);
  const auto q = static_cast<double>(shape.targets);
  const double flops =
      static_cast<double>(rows) * static_cast<double>(shape.groups) * (p * p + 2 * p * q);
  plan->Exact("accumulate", "passes", in.passes, "passes", "over the shards, under --memory");
  plan->Exact("accumulate", "memory", static_cast<double>(in.accumulate_peak_bytes), "bytes",
              "resident set at its largest");
  plan->Exact("accumulate", "disk", static_cast<double>(MomentsBytes(in)), "bytes",
              "moments of both splits, FP64");
  plan->Exact("accumulate", "work", flops, "FLOP", "rows x (p^2 + 2 p q), half of the Gram");
  plan->Time("accumulate", flops, in.fp32_flops, Provenance::kMeasured,
             "at this machine's rate of products");
}

void PlanSolve(const PairPlanInput& in, Plan* plan) {
  // One candidate of p columns: a factorisation and a solve, for each lambda looked at. Greedy
  // selection tries every layer that is left at every step.
  const double q = static_cast<double>(in.head_local ? in.target.head_dim : in.target.row());
  const double systems = in.head_local ? in.target.kv_heads : 1;
  double flops = 0;
  for (int64_t k = 1; k <= Sources(in); ++k) {
    const double p = static_cast<double>(Features(in)) / static_cast<double>(Sources(in)) *
                     static_cast<double>(k);
    const double tries = static_cast<double>(in.source.layers - k + 1 + kLambdas);
    flops += tries * (p * p * p / 3 + 2 * p * p * q);
  }
  flops *= 2 * in.target.layers * systems;
  plan->Exact("solve", "work", flops, "FLOP",
              "greedy: every remaining layer tried at every step; --order probe skips that");
  plan->Time("solve", flops, in.fp64_flops, Provenance::kMeasured,
             "at this machine's FP64 factorisations; an upper bound");
}

void PlanMapper(const PairPlanInput& in, Plan* plan) {
  const double columns = static_cast<double>(2 * in.target.layers * in.target.row());
  const double parameters = columns * static_cast<double>(Features(in) + 1);
  const double flops = 2 * columns * static_cast<double>(Features(in));
  plan->Exact("mapper", "parameters", parameters, "parameters", "2 L H D (features + 1)");
  plan->Exact("mapper", "size", 2 * parameters, "bytes", "BF16, on disk and resident");
  plan->Exact("serve", "map", flops, "FLOP", "per token");
  Quantity rate{"serve",
                "map rate",
                std::nullopt,
                "tokens/s",
                Provenance::kUnmeasured,
                "this machine's map of 512 tokens; moving bytes not counted"};
  if (in.map_flops && *in.map_flops > 0) {
    rate.value = *in.map_flops / flops;
    rate.provenance = Provenance::kMeasured;
  }
  Quantity even{
      "serve",
      "break-even",
      std::nullopt,
      "",
      Provenance::kUnmeasured,
      "map rate over the stated prefill rate (--prefill-rate): above 1 mapping is faster"};
  if (rate.value && in.prefill_tokens_per_second > 0) {
    even.value = *rate.value / in.prefill_tokens_per_second;
    even.provenance = Provenance::kDerived;
    even.unit = "x prefill";
  }
  plan->Add(std::move(rate));
  plan->Add(std::move(even));
}

}  // namespace

int64_t MomentsBytes(const PairPlanInput& input) {
  const Shape s = ShapeOf(input);
  const int64_t numbers =
      s.features * s.features + s.features * s.targets + s.features + 2 * s.targets;
  return kSplits * s.groups * numbers * static_cast<int64_t>(sizeof(double));
}

absl::StatusOr<std::vector<Quantity>> MakePairPlan(const PairPlanInput& input) {
  KVB_RETURN_IF_ERROR(Validate(input));
  const int64_t rows = input.sequences * ((input.length + input.stride - 1) / input.stride);
  Plan plan;
  PlanCapture(input, rows, &plan);
  PlanAccumulate(input, rows, &plan);
  PlanSolve(input, &plan);
  PlanMapper(input, &plan);
  return plan.Take();
}

}  // namespace kvbridge::plan
