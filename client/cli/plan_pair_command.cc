// kvbridge plan --pair SOURCE TARGET: what a mapper for two models will take.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/commands.h"
#include "client/cli/local_models.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/fit/accumulate_plan.h"
#include "core/fit/rates.h"
#include "core/fit/split_columns.h"
#include "core/kv/buffer_pool.h"
#include "core/plan/pair_plan.h"

namespace kvbridge::cli {
namespace {

constexpr int64_t kTileTokens = 512;
constexpr uint64_t kWorkspaceBytes = uint64_t{1} << 30;
// What the process takes before it accumulates.
constexpr uint64_t kBaselineBytes = 32 * base::kMiB;

// One target layer of the pair with weights of zero: FLOP/s do not depend on numbers.
struct OneLayer {
  std::vector<std::byte> zeros;
  std::shared_ptr<mapper::Mapper> mapper = std::make_shared<mapper::Mapper>();
};

OneLayer MakeOneLayer(const PairFlags& flags, const fit::SpecPair& specs) {
  OneLayer made;
  mapper::Mapper& m = *made.mapper;
  m.source = specs.source;
  m.target = specs.target;
  m.target.geometry.layers = 1;
  m.target.geometry.attention.clear();
  m.target.rope.layer_overrides.clear();
  mapper::LayerMap map;
  if (flags.head_local) map.support = mapper::Support::kHeadLocal;
  for (int32_t l = 0; l < std::min(flags.k, specs.source.geometry.layers); ++l) {
    map.sources.push_back(l);
  }
  const int64_t features = map.features(specs.source.geometry);
  const int64_t heads = specs.target.geometry.kv_heads;
  const int64_t dim = specs.target.geometry.head_dim;
  made.zeros.resize(static_cast<size_t>(2 * heads * features * dim));
  map.weight = {tensor::DType::kBf16, {heads, features, dim}, made.zeros};
  map.bias = {tensor::DType::kBf16,
              {heads, dim},
              std::span(made.zeros).first(static_cast<size_t>(2 * heads * dim))};
  m.keys = {map};
  m.values = {map};
  return made;
}

// A zeroed cache of one tile.
struct TileCache {
  std::vector<std::byte> bytes;
  kv::KvView view;
};

TileCache MakeTileCache(const model::KvGeometry& g) {
  TileCache cache;
  const int64_t row_bytes = g.row() * static_cast<int64_t>(tensor::ByteSize(g.dtype));
  cache.bytes.resize(static_cast<size_t>(2 * g.layers * kTileTokens * row_bytes));
  cache.view = {.dtype = g.dtype,
                .layers = g.layers,
                .kv_heads = g.kv_heads,
                .head_dim = g.head_dim,
                .tokens = kTileTokens};
  for (int32_t p = 0; p < 2 * g.layers; ++p) {
    cache.view.planes.push_back({.base = cache.bytes.data() + p * kTileTokens * row_bytes,
                                 .token_stride = row_bytes,
                                 .head_stride = row_bytes / g.kv_heads});
  }
  return cache;
}

absl::StatusOr<double> MeasureMapFlops(const PairFlags& flags, const fit::SpecPair& specs,
                                       base::WorkerPool* pool) {
  KVB_ASSIGN_OR_RETURN(
      auto backend, device::CpuBackend::Create({}, pool, kv::BufferPool::Create(kWorkspaceBytes)));
  const OneLayer layer = MakeOneLayer(flags, specs);
  KVB_ASSIGN_OR_RETURN(const auto resident,
                       backend->MakeResident(layer.mapper, device::Precision::kBf16, {}));
  const TileCache source = MakeTileCache(layer.mapper->source.geometry);
  const TileCache target = MakeTileCache(layer.mapper->target.geometry);
  std::vector<int64_t> positions(kTileTokens);
  for (int64_t t = 0; t < kTileTokens; ++t) positions[t] = t;
  KVB_ASSIGN_OR_RETURN(const auto tile, backend->Prepare(*resident, {.view = &source.view,
                                                                     .tokens = {0, kTileTokens},
                                                                     .positions = positions}));
  double best = 0;
  for (int run = 0; run < 6; ++run) {
    const auto start = std::chrono::steady_clock::now();
    KVB_RETURN_IF_ERROR(
        backend->MapLayers(*resident, *tile, {0, 1}, target.view, 0, [] { return false; })
            .status());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, kTileTokens * layer.mapper->flops_per_token() / took.count());
  }
  return best;
}

// What the accumulator would say of these models.
absl::StatusOr<fit::AccumulatePlan> PlanSweeps(const PairFlags& flags, const fit::SpecPair& specs,
                                               int threads) {
  const auto file_bytes = [&](const model::KvGeometry& g) {
    return static_cast<uint64_t>(4 * g.layers * g.row() * (flags.length / flags.stride + 1));
  };
  fit::ShardFolder folder;
  folder.specs = specs;
  folder.largest_file = file_bytes(specs.source.geometry) + file_bytes(specs.target.geometry);
  folder.data_bytes = folder.largest_file * static_cast<uint64_t>(flags.sequences);
  const auto layout = flags.head_local ? fit::Layout::kHeadLocal : fit::Layout::kFull;
  return fit::PlanAccumulate(folder, layout,
                             {.memory_bytes = flags.memory_bytes,
                              .baseline_bytes = kBaselineBytes,
                              .threads = threads,
                              .amx = fit::SplitColumns::Available()});
}

std::string ValueText(const plan::Quantity& q) {
  if (!q.value) return "–";
  if (q.unit == "bytes") return base::HumanBytes(static_cast<uint64_t>(*q.value));
  if (q.unit == "FLOP") return absl::StrFormat("%.3g FLOP", *q.value);
  return absl::StrFormat(*q.value < 1000 ? "%.3g %s" : "%.0f %s", *q.value, q.unit);
}

absl::Status Emit(const PairFlags& flags, const std::vector<plan::Quantity>& quantities,
                  const Output& output) {
  base::Json list = base::Json::array();
  for (const plan::Quantity& q : quantities) {
    list.push_back({{"stage", q.stage},
                    {"name", q.name},
                    {"value", base::NumberOrNull(q.value)},
                    {"unit", q.unit},
                    {"source", std::string(plan::Name(q.provenance))},
                    {"how", q.how}});
  }
  const base::Json document = {{"schema", "kvbridge.pair-plan/v1"},
                               {"source_config", flags.configs.source},
                               {"target_config", flags.configs.target},
                               {"quantities", list}};
  return output.Emit(document, [&](bool bold) {
    Table table({"stage", "what", "value", "source", "how"});
    for (const plan::Quantity& q : quantities) {
      table.AddRow({q.stage, q.name, ValueText(q), std::string(plan::Name(q.provenance)), q.how});
    }
    return table.Render(bold);
  });
}

}  // namespace

absl::StatusOr<ExitCode> RunPlanPair(const PairFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(const auto source, ReadConfig(flags.configs.source));
  KVB_ASSIGN_OR_RETURN(const auto target, ReadConfig(flags.configs.target));
  const fit::SpecPair specs = {.source = *source, .target = *target};
  plan::PairPlanInput input = {.source = source->geometry,
                               .target = target->geometry,
                               .sequences = flags.sequences,
                               .length = flags.length,
                               .stride = flags.stride,
                               .k = flags.k,
                               .head_local = flags.head_local,
                               .capture_tokens_per_second = flags.capture_rate,
                               .prefill_tokens_per_second = flags.prefill_rate};
  // Before anything is measured: it names what is out of range.
  KVB_RETURN_IF_ERROR(plan::MakePairPlan(input).status());
  KVB_ASSIGN_OR_RETURN(const auto pool, base::WorkerPool::Create({}));
  KVB_ASSIGN_OR_RETURN(const fit::AccumulatePlan sweeps, PlanSweeps(flags, specs, pool->threads()));
  input.passes = sweeps.passes;
  input.accumulate_peak_bytes = sweeps.peak_bytes;
  if (!flags.no_measure) {
    const Progress progress("measuring this machine", output.quiet());
    KVB_ASSIGN_OR_RETURN(const fit::Rates rates, fit::MeasureRates());
    input.fp32_flops = rates.fp32_flops;
    input.fp64_flops = rates.fp64_flops;
    KVB_ASSIGN_OR_RETURN(input.map_flops, MeasureMapFlops(flags, specs, pool.get()));
  }
  KVB_ASSIGN_OR_RETURN(const auto quantities, plan::MakePairPlan(input));
  KVB_RETURN_IF_ERROR(Emit(flags, quantities, output));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
