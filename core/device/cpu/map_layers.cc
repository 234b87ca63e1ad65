#include "core/device/cpu/map_layers.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <deque>

#include "absl/strings/str_cat.h"
#include <emmintrin.h>

#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/device/cpu/network.h"
#include "core/device/cpu/product.h"
#include "core/tensor/convert.h"

namespace kvbridge::device::cpu {
namespace {

using kv::Component;
using mapper::Support;

// Head-local products are small: a unit takes as many layers as make about a millisecond on AMX.
constexpr double kUnitFlops = 1e9;
// How much one unit covers at most: its results, 512 tokens by 256 columns of float, fill a quarter
// of a second-level cache of 2 MiB, beside two rounds of weights.
constexpr int32_t kUnitBlocks = 16;
constexpr int32_t kUnitColumns = 8;

// Target heads of one full-head unit.
int32_t UnitHeads(const Blocking& blocking) {
  return std::clamp(kUnitColumns / blocking.head_columns, 1, blocking.target_heads);
}

// Of one worker's results.
int64_t ResultFloats(const Blocking& blocking, int32_t blocks) {
  return int64_t{std::min(blocks, kUnitBlocks)} * UnitHeads(blocking) * blocking.head_columns *
         kBlockElements;
}

// With the activations of a network.
int64_t ScratchFloats(const ResidentWeights& resident, int32_t blocks) {
  const Blocking& blocking = resident.blocking();
  return ResultFloats(blocking, blocks) + int64_t{std::min(blocks, kUnitBlocks)} *
                                              resident.network_columns() * blocking.step_bytes() /
                                              static_cast<int64_t>(sizeof(float));
}

// Some target heads of some layers, for up to kUnitBlocks blocks of tokens.
struct Unit {
  Component component;
  kv::LayerRange layers;
  int32_t head_begin, head_end;
  int32_t block_begin, block_end;
};

// A tile that takes part in a call, and what was seen of it.
struct Part {
  Part(const TilePart& part, const CpuTile& tile, absl::StatusOr<TileChecks>& answer)
      : tile(tile),
        target(*part.target),
        target_begin(part.target_begin),
        cancelled(part.cancelled),
        answer(answer) {}

  const CpuTile& tile;
  const kv::KvView& target;
  const int64_t target_begin;
  const absl::FunctionRef<bool()> cancelled;
  std::atomic<bool> stopped{false};
  RowStats stats{};  // guarded by the run's mutex
  absl::StatusOr<TileChecks>& answer;

  // Whether it still wants its results.
  bool Poll() {
    if (!stopped.load(std::memory_order_relaxed) && cancelled()) {
      stopped.store(true, std::memory_order_relaxed);
    }
    return !stopped.load(std::memory_order_relaxed);
  }
  // After the last unit.
  void SetAnswer() {
    if (stopped) {
      answer = absl::CancelledError("map: cancelled between units of work");
    } else {
      answer = TileChecks{.non_finite = stats.non_finite,
                          .saturated = stats.saturated,
                          .max_abs = std::bit_cast<float>(stats.max_magnitude)};
    }
  }
};

// 32 tokens of a part.
struct Block {
  Part* part;
  int32_t index;  // in its tile
};

void Add(const RowStats& more, RowStats& stats) {
  stats.non_finite += more.non_finite;
  stats.saturated += more.saturated;
  stats.max_magnitude = std::max(stats.max_magnitude, more.max_magnitude);
}

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
  // `scratch`: lanes of ScratchFloats each.
  Run(const ResidentWeights& resident, const KernelSet& kernels, std::vector<Block> blocks,
      float* scratch, int32_t lanes)
      : resident_(resident),
        blocking_(resident.blocking()),
        kernels_(kernels),
        gemm_{resident.precision() == Precision::kBf16 ? kernels.gemm_bf16 : kernels.gemm_f32,
              resident.blocking().step_bytes()},
        blocks_(std::move(blocks)) {
    const int64_t floats = ScratchFloats(resident, static_cast<int32_t>(blocks_.size()));
    for (int32_t lane = lanes; lane-- > 0;) free_.push_back(scratch + lane * floats);
  }

  std::vector<Unit> Plan(kv::LayerRange layers, int32_t workers) const;
  void Do(const Unit& unit);

 private:
  // Heads of one layer that are multiplied together, and where their numbers are.
  struct Share {
    const ResidentLayer& layer;
    int32_t layer_index;
    Component component;
    int32_t head_begin, head_end;
    std::span<const Block> blocks;
    const std::byte* active;  // [blocks] activations of the network; null: there is none
    float* c;                 // [blocks][columns] blocks
    int32_t columns;
  };
  using UnitStats = std::array<RowStats, kUnitBlocks>;  // of each block

  void PlanLayer(kv::LayerRange layers, Component c, int32_t head_step, int32_t block_step,
                 std::vector<Unit>& units) const;
  bool DoLayer(const Unit& unit, int32_t layer, std::span<const Block> blocks, float* scratch,
               UnitStats& stats) const;
  bool DoShare(const Share& share, const Wanted& wanted, UnitStats& stats) const;
  void FinishBlock(const Share& share, int32_t index, const float* c, RowStats& stats) const;

  const ResidentWeights& resident_;
  const Blocking& blocking_;
  const KernelSet& kernels_;
  const Gemm gemm_;
  const std::vector<Block> blocks_;

  base::Mutex mutex_;
  // Last in, first out: a worker mostly gets back the scratch that is in its own cache.
  std::vector<float*> free_ ABSL_GUARDED_BY(mutex_);
};

// Asks each part once: blocks of a part follow each other. True: some part goes on.
bool PollAll(std::span<const Block> blocks) {
  bool any = false;
  const Part* asked = nullptr;
  for (const Block& block : blocks) {
    if (block.part == asked) continue;
    asked = block.part;
    any |= block.part->Poll();
  }
  return any;
}

void Run::PlanLayer(kv::LayerRange layers, Component c, int32_t head_step, int32_t block_step,
                    std::vector<Unit>& units) const {
  const auto blocks = static_cast<int32_t>(blocks_.size());
  for (int32_t h = 0; h < blocking_.target_heads; h += head_step) {
    for (int32_t b = 0; b < blocks; b += block_step) {
      units.push_back({.component = c,
                       .layers = layers,
                       .head_begin = h,
                       .head_end = std::min(h + head_step, blocking_.target_heads),
                       .block_begin = b,
                       .block_end = std::min(b + block_step, blocks)});
    }
  }
}

std::vector<Unit> Run::Plan(kv::LayerRange layers, int32_t workers) const {
  const auto blocks = static_cast<int32_t>(blocks_.size());
  const auto is_head_local = [&](const ResidentLayer& layer) {
    return layer.support == Support::kHeadLocal && layer.network.layers.empty();
  };
  std::vector<Unit> units;
  for (Component c : kv::kComponents) {
    for (int32_t l = layers.begin; l < layers.end;) {
      const ResidentLayer& layer = resident_.layer(l, c);
      if (!layer.network.layers.empty()) {
        // All heads read the same activations: units are parts of the tokens instead.
        PlanLayer({l, l + 1}, c, blocking_.target_heads,
                  std::clamp(layers.size() * blocks / workers, 1, kUnitBlocks), units);
        ++l;
        continue;
      }
      if (layer.support == Support::kFull) {
        PlanLayer({l, l + 1}, c, UnitHeads(blocking_), kUnitBlocks, units);
        ++l;
        continue;
      }
      const double tokens = double{kBlock} * std::min(blocks, kUnitBlocks);
      const double flops = 2 * tokens * layer.steps(blocking_) * kBlock * blocking_.padded_dim();
      const int32_t spread = std::max(1, layers.size() * blocking_.target_heads / (2 * workers));
      const int32_t most = std::clamp(static_cast<int32_t>(kUnitFlops / flops), 1, spread);
      int32_t end = l + 1;
      while (end < layers.end && end - l < most && is_head_local(resident_.layer(end, c))) ++end;
      PlanLayer({l, end}, c, 1, kUnitBlocks, units);
      l = end;
    }
  }
  return units;
}

void Run::Do(const Unit& unit) {
  const std::span<const Block> blocks =
      std::span(blocks_).subspan(unit.block_begin, unit.block_end - unit.block_begin);
  if (!PollAll(blocks)) return;
  float* scratch;
  {
    base::MutexLock lock(&mutex_);
    scratch = free_.back();
    free_.pop_back();
  }
  UnitStats stats{};
  kernels_.enter();
  for (int32_t l = unit.layers.begin; l < unit.layers.end; ++l) {
    if (!DoLayer(unit, l, blocks, scratch, stats)) break;
  }
  kernels_.leave();
  _mm_sfence();
  base::MutexLock lock(&mutex_);
  free_.push_back(scratch);
  for (size_t i = 0; i < blocks.size(); ++i) Add(stats[i], blocks[i].part->stats);
}

// False: no part wants to go on.
bool Run::DoLayer(const Unit& unit, int32_t layer_index, std::span<const Block> blocks,
                  float* scratch, UnitStats& stats) const {
  const ResidentLayer& layer = resident_.layer(layer_index, unit.component);
  const auto any = [&] { return PollAll(blocks); };
  const auto this_one = [&](int32_t index) {
    return !blocks[index].part->stopped.load(std::memory_order_relaxed);
  };
  const Wanted wanted = {any, this_one};
  const int32_t heads = UnitHeads(blocking_);
  const std::byte* active = nullptr;
  if (!layer.network.layers.empty()) {
    const auto feature = [&](int32_t segment, int32_t index) {
      return blocks[index].part->tile.Block(layer.segments[segment], blocks[index].index);
    };
    float* activations = scratch + ResultFloats(blocking_, static_cast<int32_t>(blocks_.size()));
    active = Activate(layer.network,
                      {.a = feature,
                       .segments = static_cast<int32_t>(layer.segments.size()),
                       .steps = blocking_.head_steps,
                       .block_bytes = blocking_.segment_bytes(),
                       .weights = nullptr},
                      static_cast<int32_t>(blocks.size()),
                      {.c = scratch,
                       .columns = heads * blocking_.head_columns,
                       .activations = reinterpret_cast<std::byte*>(activations)},
                      kernels_, gemm_, wanted);
    if (active == nullptr) return false;
  }
  const int32_t step = layer.support == Support::kHeadLocal ? 1 : heads;
  for (int32_t h = unit.head_begin; h < unit.head_end; h += step) {
    const int32_t end = std::min(h + step, unit.head_end);
    const Share share = {.layer = layer,
                         .layer_index = layer_index,
                         .component = unit.component,
                         .head_begin = h,
                         .head_end = end,
                         .blocks = blocks,
                         .active = active,
                         .c = scratch,
                         .columns = (end - h) * blocking_.head_columns};
    if (!DoShare(share, wanted, stats)) return false;
  }
  return true;
}

// The linear part and the network's, one after the other into the same sums.
bool Run::DoShare(const Share& share, const Wanted& wanted, UnitStats& stats) const {
  const std::span<const Segment> segments = share.layer.SegmentsOf(share.head_begin);
  const auto feature = [&](int32_t segment, int32_t index) {
    const Block& block = share.blocks[index];
    return block.part->tile.Block(segments[segment], block.index);
  };
  const ResidentNetwork& network = share.layer.network;
  const int32_t width = share.active == nullptr ? 0 : network.layers.back().columns;
  const int64_t width_bytes = width * blocking_.step_bytes();
  const auto activation = [&](int32_t segment, int32_t index) {
    return share.active + index * width_bytes + segment * blocking_.step_bytes();
  };
  const int64_t first_column = int64_t{share.head_begin} * blocking_.head_columns;
  const int64_t column_bytes = share.layer.steps(blocking_) * blocking_.step_bytes();
  Product product = {.factors = {},
                     .blocks = static_cast<int32_t>(share.blocks.size()),
                     .columns = share.columns,
                     .c = share.c};
  if (!segments.empty()) {
    product.factors.push_back({.a = feature,
                               .segments = static_cast<int32_t>(segments.size()),
                               .steps = blocking_.head_steps,
                               .block_bytes = blocking_.segment_bytes(),
                               .weights = share.layer.weights + first_column * column_bytes});
  }
  if (width > 0) {
    product.factors.push_back({.a = activation,
                               .segments = width,
                               .steps = 1,
                               .block_bytes = width_bytes,
                               .weights = network.out + first_column * width_bytes});
  }
  return Multiply(product, gemm_, wanted, [&](int32_t index, const float* c) {
    FinishBlock(share, index, c, stats[index]);
  });
}

void Run::FinishBlock(const Share& share, int32_t index, const float* c, RowStats& stats) const {
  const mapper::KeyNorm& norm = resident_.mapper().key_norm;
  const bool key = share.component == Component::kKey;
  const Part& part = *share.blocks[index].part;
  const kv::KvView& target = part.target;
  const int64_t first = int64_t{share.blocks[index].index} * kBlock;
  const auto rows = static_cast<int32_t>(std::min<int64_t>(kBlock, part.tile.tokens() - first));
  const int32_t rotation = key ? resident_.target_rotation(share.layer_index) : -1;
  const kv::Plane& plane = target.plane(share.layer_index, share.component);
  std::array<rope::RopeRow, kBlock> rope;
  std::array<void*, kBlock> dst;
  for (int32_t r = 0; r < rows; ++r) {
    if (rotation >= 0) rope[r] = part.tile.Rotation(rotation, first + r);
    dst[r] = target.Row(share.layer_index, share.component, part.target_begin + first + r) +
             share.head_begin * plane.head_stride;
  }
  FinishArgs args = {.c = c,
                     .rows = rows,
                     .head_dim = resident_.mapper().target.geometry.head_dim,
                     .padded_dim = blocking_.padded_dim(),
                     .bias = share.layer.bias + share.head_begin * blocking_.padded_dim(),
                     .inv_gamma = share.layer.inv_gamma,
                     .inv_count = share.layer.inv_count,
                     .eps = static_cast<float>(norm.eps),
                     .rope = rotation >= 0 ? rope.data() : nullptr,
                     .dst = dst.data(),
                     .store_bf16 = target.dtype == tensor::DType::kBf16,
                     .encode = Encode,
                     .dtype = static_cast<uint8_t>(target.dtype)};
  for (int32_t head = share.head_begin; head < share.head_end; ++head) {
    args.scale = 1;
    if (norm.kind == mapper::KeyNorm::Kind::kScale) {
      args.scale = (key ? norm.key_scale : norm.value_scale)[share.layer_index][head];
    }
    args.dst_scale = target.Scale(share.layer_index, share.component, head);
    kernels_.finish(args, stats);
    args.c += blocking_.head_columns * kBlockElements;
    args.bias += blocking_.padded_dim();
    for (int32_t r = 0; r < rows; ++r) dst[r] = static_cast<std::byte*>(dst[r]) + plane.head_stride;
  }
}

// The parts that can be mapped; the others have their answer.
std::deque<Part> Admit(const ResidentWeights& resident, kv::LayerRange layers,
                       std::span<const TilePart> parts, const KernelSet& kernels,
                       base::WorkerPool& workers,
                       std::vector<absl::StatusOr<TileChecks>>& answers) {
  std::deque<Part> admitted;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto& tile = static_cast<CpuTile&>(*parts[i].tile);
    absl::Status good = CheckTarget(resident.mapper().target.geometry, *parts[i].target, layers,
                                    parts[i].target_begin, tile.tokens());
    if (good.ok()) good = tile.TakeSource(layers, kernels, workers);
    if (good.ok()) {
      admitted.emplace_back(parts[i], tile, answers[i]);
    } else {
      answers[i] = std::move(good);
    }
  }
  return admitted;
}

}  // namespace

uint64_t CallBytes(const ResidentWeights& resident, int64_t tokens, int32_t lanes) {
  return ScratchFloats(resident, CeilDiv(tokens, kBlock)) * lanes * sizeof(float);
}

std::vector<absl::StatusOr<TileChecks>> MapTogether(const ResidentWeights& resident,
                                                    kv::LayerRange layers,
                                                    std::span<const TilePart> parts,
                                                    const KernelSet& kernels, kv::BufferPool& pool,
                                                    base::WorkerPool& workers) {
  std::vector<absl::StatusOr<TileChecks>> answers(parts.size(), TileChecks());
  std::deque<Part> admitted = Admit(resident, layers, parts, kernels, workers, answers);
  if (admitted.empty()) return answers;
  std::vector<Block> blocks;
  for (Part& part : admitted) {
    for (int32_t i = 0; i < part.tile.blocks(); ++i) blocks.push_back({&part, i});
  }
  const int32_t lanes = workers.threads() + 1;
  const auto scratch =
      pool.Acquire(CallBytes(resident, static_cast<int64_t>(blocks.size()) * kBlock, lanes));
  if (!scratch.ok()) {
    for (Part& part : admitted) part.answer = scratch.status();
    return answers;
  }
  Run run(resident, kernels, std::move(blocks), reinterpret_cast<float*>((*scratch)->data()),
          lanes);
  const std::vector<Unit> units = run.Plan(layers, workers.threads());
  workers.ParallelFor(static_cast<int64_t>(units.size()), [&](int64_t i) { run.Do(units[i]); });
  for (Part& part : admitted) part.SetAnswer();
  return answers;
}

}  // namespace kvbridge::device::cpu
