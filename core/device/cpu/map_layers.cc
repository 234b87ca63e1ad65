#include "core/device/cpu/map_layers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "absl/strings/str_cat.h"
#include <emmintrin.h>

#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/tensor/convert.h"

namespace kvbridge::device::cpu {
namespace {

using kv::Component;
using mapper::Support;

// Features multiplied between two visits to a block of results: 16 KiB of A stay in the first-level
// cache while 8 column blocks pass by.
constexpr int32_t kRoundSteps = 8;
// Head-local products are small: a unit takes as many layers as make about a millisecond on AMX.
constexpr double kUnitFlops = 1e9;

// Some target heads of some layers, for up to kUnitBlocks blocks of tokens.
struct Unit {
  Component component;
  kv::LayerRange layers;
  int32_t head_begin, head_end;
  int32_t block_begin, block_end;
};

uint64_t Encode(uint8_t dtype, const float* src, float scale, void* dst, uint64_t n) {
  return tensor::EncodeRow(static_cast<tensor::DType>(dtype), src, scale,
                           static_cast<std::byte*>(dst), n);
}

absl::Status CheckField(absl::string_view field, int64_t expected, int64_t got) {
  if (expected == got) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("target.", field, ": expected ", expected, ", got ", got));
}

absl::Status CheckTarget(const model::KvGeometry& geometry, const kv::KvView& target,
                         kv::LayerRange layers, int64_t begin, int64_t tokens) {
  KVB_RETURN_IF_ERROR(CheckField("layers", geometry.layers, target.layers));
  KVB_RETURN_IF_ERROR(CheckField("kv_heads", geometry.kv_heads, target.kv_heads));
  KVB_RETURN_IF_ERROR(CheckField("head_dim", geometry.head_dim, target.head_dim));
  if (layers.begin < 0 || layers.end < layers.begin || layers.end > geometry.layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers: expected a range within [0, ",
                                                   geometry.layers, "), got [", layers.begin, ", ",
                                                   layers.end, ")"));
  }
  if (begin < 0 || begin > target.tokens - tokens) {
    return absl::InvalidArgumentError(absl::StrCat("target.tokens: expected room for [", begin,
                                                   ", ", begin + tokens, "), got ", target.tokens));
  }
  return absl::OkStatus();
}

// One call: the units share it.
class Run {
 public:
  Run(const ResidentWeights& resident, const CpuTile& tile, const kv::KvView& target,
      int64_t target_begin, const KernelSet& kernels, int32_t lanes,
      absl::FunctionRef<bool()> cancelled)
      : resident_(resident),
        blocking_(resident.blocking()),
        tile_(tile),
        target_(target),
        target_begin_(target_begin),
        kernels_(kernels),
        gemm_(resident.precision() == Precision::kBf16 ? kernels.gemm_bf16 : kernels.gemm_f32),
        cancelled_(cancelled) {
    for (int32_t lane = lanes; lane-- > 0;) free_.push_back(tile.Scratch(lane));
  }

  std::vector<Unit> Plan(kv::LayerRange layers, int32_t workers) const;
  void Do(const Unit& unit);
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  TileChecks checks() const {
    base::MutexLock lock(&mutex_);
    return {.non_finite = stats_.non_finite,
            .saturated = stats_.saturated,
            .max_abs = std::bit_cast<float>(stats_.max_magnitude)};
  }

 private:
  // One layer's share of a unit, and where its numbers are.
  struct Product {
    const ResidentLayer& layer;
    const std::vector<Segment>& segments;
    int32_t layer_index;
    Component component;
    int32_t head_begin, head_end;
    int32_t block_begin, block_end;
    float* c;  // [blocks][columns] blocks
    int32_t columns;
  };
  void PlanLayer(kv::LayerRange layers, Component c, int32_t head_step,
                 std::vector<Unit>& units) const;
  bool Multiply(const Product& product, RowStats& stats);
  void MultiplyBlock(const Product& product, int32_t block, int32_t first, int32_t count);
  void FinishBlock(const Product& product, int32_t block, RowStats& stats);
  bool Poll() {
    if (!stopped() && cancelled_()) stopped_.store(true, std::memory_order_relaxed);
    return !stopped();
  }

  const ResidentWeights& resident_;
  const Blocking& blocking_;
  const CpuTile& tile_;
  const kv::KvView& target_;
  const int64_t target_begin_;
  const KernelSet& kernels_;
  void (*const gemm_)(const GemmArgs&);
  absl::FunctionRef<bool()> cancelled_;
  std::atomic<bool> stopped_{false};

  mutable base::Mutex mutex_;
  // Last in, first out: a worker mostly gets back the scratch that is in its own cache.
  std::vector<float*> free_ ABSL_GUARDED_BY(mutex_);
  RowStats stats_ ABSL_GUARDED_BY(mutex_) = {};
};

void Run::PlanLayer(kv::LayerRange layers, Component c, int32_t head_step,
                    std::vector<Unit>& units) const {
  for (int32_t h = 0; h < blocking_.target_heads; h += head_step) {
    for (int32_t b = 0; b < tile_.blocks(); b += kUnitBlocks) {
      units.push_back({.component = c,
                       .layers = layers,
                       .head_begin = h,
                       .head_end = std::min(h + head_step, blocking_.target_heads),
                       .block_begin = b,
                       .block_end = std::min(b + kUnitBlocks, tile_.blocks())});
    }
  }
}

std::vector<Unit> Run::Plan(kv::LayerRange layers, int32_t workers) const {
  std::vector<Unit> units;
  for (Component c : kv::kComponents) {
    for (int32_t l = layers.begin; l < layers.end;) {
      const ResidentLayer& layer = resident_.layer(l, c);
      if (layer.support == Support::kFull) {
        PlanLayer({l, l + 1}, c, UnitHeads(blocking_), units);
        ++l;
        continue;
      }
      const double tokens = std::min(tile_.blocks(), kUnitBlocks) * double{kBlock};
      const double flops = 2 * tokens * layer.steps(blocking_) * kBlock * blocking_.padded_dim();
      const int32_t spread = std::max(1, layers.size() * blocking_.target_heads / (2 * workers));
      const int32_t most = std::clamp(static_cast<int32_t>(kUnitFlops / flops), 1, spread);
      int32_t end = l + 1;
      while (end < layers.end && end - l < most &&
             resident_.layer(end, c).support == Support::kHeadLocal) {
        ++end;
      }
      PlanLayer({l, end}, c, 1, units);
      l = end;
    }
  }
  return units;
}

void Run::Do(const Unit& unit) {
  if (!Poll()) return;
  float* scratch;
  {
    base::MutexLock lock(&mutex_);
    scratch = free_.back();
    free_.pop_back();
  }
  RowStats stats{};
  kernels_.enter();
  for (int32_t l = unit.layers.begin; l < unit.layers.end; ++l) {
    const ResidentLayer& layer = resident_.layer(l, unit.component);
    const Product product = {.layer = layer,
                             .segments = layer.SegmentsOf(unit.head_begin),
                             .layer_index = l,
                             .component = unit.component,
                             .head_begin = unit.head_begin,
                             .head_end = unit.head_end,
                             .block_begin = unit.block_begin,
                             .block_end = unit.block_end,
                             .c = scratch,
                             .columns = (unit.head_end - unit.head_begin) * blocking_.head_columns};
    if (!Multiply(product, stats)) break;
  }
  kernels_.leave();
  _mm_sfence();
  base::MutexLock lock(&mutex_);
  free_.push_back(scratch);
  stats_.non_finite += stats.non_finite;
  stats_.saturated += stats.saturated;
  stats_.max_magnitude = std::max(stats_.max_magnitude, stats.max_magnitude);
}

// Rounds of a few segments over all blocks; the last round finishes each block. False: cancelled.
bool Run::Multiply(const Product& product, RowStats& stats) {
  const auto total = static_cast<int32_t>(product.segments.size());
  const int32_t round = std::max(1, kRoundSteps / blocking_.head_steps);
  for (int32_t first = 0; first < total; first += round) {
    if (!Poll()) return false;
    const int32_t count = std::min(round, total - first);
    for (int32_t block = product.block_begin; block < product.block_end; ++block) {
      MultiplyBlock(product, block, first, count);
      if (first + count == total) FinishBlock(product, block, stats);
    }
  }
  return true;
}

void Run::MultiplyBlock(const Product& product, int32_t block, int32_t first, int32_t count) {
  std::array<const void*, kRoundSteps> a;
  for (int32_t s = 0; s < count; ++s) a[s] = tile_.Block(product.segments[first + s], block);
  const int64_t segment_bytes = blocking_.segment_bytes();
  const int64_t column_bytes = product.layer.steps(blocking_) * blocking_.step_bytes();
  const int64_t round_bytes = count * segment_bytes;
  const int32_t blocks = product.block_end - product.block_begin;
  const int32_t index = block - product.block_begin;
  constexpr int32_t kLine = 64;
  const auto step_lines = static_cast<int32_t>(blocking_.step_bytes() / kLine);
  GemmArgs args = {.a = a.data(),
                   .segments = count,
                   .steps = blocking_.head_steps,
                   .accumulate = first > 0,
                   .lines_b = CeilDiv(step_lines, blocks),
                   .lines_a = CeilDiv(step_lines, product.columns)};
  const std::byte* b = product.layer.weights +
                       product.head_begin * blocking_.head_columns * column_bytes +
                       first * segment_bytes;
  for (int32_t column = 0; column < product.columns; ++column, b += column_bytes) {
    args.b = b;
    args.c = product.c + (int64_t{index} * product.columns + column) * kBlockElements;
    // The next round's weights, spread over the blocks, and the next block's features, over the
    // columns.
    args.prefetch_b =
        reinterpret_cast<const char*>(b) + round_bytes + index * (round_bytes / blocks);
    args.prefetch_a = segment_bytes + column * args.lines_a * kLine;
    gemm_(args);
  }
}

void Run::FinishBlock(const Product& product, int32_t block, RowStats& stats) {
  const mapper::KeyNorm& norm = resident_.mapper().key_norm;
  const bool key = product.component == Component::kKey;
  const int64_t first = int64_t{block} * kBlock;
  const auto rows = static_cast<int32_t>(std::min<int64_t>(kBlock, tile_.tokens() - first));
  const int32_t rotation = key ? resident_.target_rotation(product.layer_index) : -1;
  const kv::Plane& plane = target_.plane(product.layer_index, product.component);
  std::array<rope::RopeRow, kBlock> rope;
  std::array<void*, kBlock> dst;
  for (int32_t r = 0; r < rows; ++r) {
    if (rotation >= 0) rope[r] = tile_.Rotation(rotation, first + r);
    dst[r] = target_.Row(product.layer_index, product.component, target_begin_ + first + r) +
             product.head_begin * plane.head_stride;
  }
  FinishArgs args = {
      .c = product.c + int64_t{block - product.block_begin} * product.columns * kBlockElements,
      .rows = rows,
      .head_dim = resident_.mapper().target.geometry.head_dim,
      .padded_dim = blocking_.padded_dim(),
      .bias = product.layer.bias + product.head_begin * blocking_.padded_dim(),
      .inv_gamma = product.layer.inv_gamma,
      .inv_count = product.layer.inv_count,
      .eps = static_cast<float>(norm.eps),
      .rope = rotation >= 0 ? rope.data() : nullptr,
      .dst = dst.data(),
      .store_bf16 = target_.dtype == tensor::DType::kBf16,
      .encode = Encode,
      .dtype = static_cast<uint8_t>(target_.dtype)};
  for (int32_t head = product.head_begin; head < product.head_end; ++head) {
    args.scale = 1;
    if (norm.kind == mapper::KeyNorm::Kind::kScale) {
      args.scale = (key ? norm.key_scale : norm.value_scale)[product.layer_index][head];
    }
    args.dst_scale = target_.Scale(product.layer_index, product.component, head);
    kernels_.finish(args, stats);
    args.c += blocking_.head_columns * kBlockElements;
    args.bias += blocking_.padded_dim();
    for (int32_t r = 0; r < rows; ++r) dst[r] = static_cast<std::byte*>(dst[r]) + plane.head_stride;
  }
}

}  // namespace

absl::StatusOr<TileChecks> MapLayers(const ResidentWeights& resident, const CpuTile& tile,
                                     kv::LayerRange layers, const kv::KvView& target,
                                     int64_t target_begin, const KernelSet& kernels,
                                     base::WorkerPool& workers,
                                     absl::FunctionRef<bool()> cancelled) {
  KVB_RETURN_IF_ERROR(
      CheckTarget(resident.mapper().target.geometry, target, layers, target_begin, tile.tokens()));
  Run run(resident, tile, target, target_begin, kernels, workers.threads() + 1, cancelled);
  const std::vector<Unit> units = run.Plan(layers, workers.threads());
  workers.ParallelFor(static_cast<int64_t>(units.size()), [&](int64_t i) { run.Do(units[i]); });
  if (run.stopped()) return absl::CancelledError("map: cancelled between units of work");
  return run.checks();
}

}  // namespace kvbridge::device::cpu
