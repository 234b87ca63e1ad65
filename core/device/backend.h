// What a device can do: keep a mapper resident, and map tiles of tokens with it.
//
// A tile runs in two steps so that answers can leave layer by layer:
//   Prepare    takes the tile's source: reads its rows, un-rotates keys and lays features out for
//              the device, at once or (SourceUse::kByLayer) as the target layers come to need them.
//   MapLayers  for a range of target layers: GEMM, bias, key renormalisation, RoPE, checks and
//              store. Several tiles may share one pass over the weights (MapTogether).
//
// Results are reproducible on one device kind: a token's bytes depend on that token and the mapper
// only, not on the tile it came in, on its neighbours, or on what used the workspace before.
//
// Thread contract: every method may be called from any thread. Prepare and MapLayers block, and
// share the process's WorkerPool inside. One PreparedTile is used by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/kv/kv_view.h"
#include "core/mapper/mapper.h"

namespace kvbridge::device {

enum class Precision : uint8_t {
  kBf16,  // weights and features BF16, accumulation FP32: the serving precision
  kF32,   // FP32 throughout: for parity tests and for judging what BF16 costs
};

// Immutable; frees its device memory when destroyed. The caller keeps it alive while tiles use it.
class ResidentMapper {
 public:
  virtual ~ResidentMapper() = default;
  virtual const mapper::Mapper& mapper() const = 0;
  virtual uint64_t resident_bytes() const = 0;
  virtual Precision precision() const = 0;
};

// Verifies the bytes that a mapper's weights lie in, showing each piece right after it was hashed:
// pieces in any order, on several threads at once, together everything. An error: the bytes are not
// what they should be, and nothing made of them may be used.
using VerifyWeights =
    std::function<absl::Status(absl::FunctionRef<void(std::span<const std::byte>)> visit)>;

// When a tile's source memory is read.
enum class SourceUse : uint8_t {
  kAtOnce,   // by Prepare: afterwards the source is no longer needed
  kByLayer,  // as target layers come to need it: the source stays until source_layers() are mapped
};

// Target layers are mapped in groups: tiles prepared kByLayer in ascending order, no call across a
// multiple of this. Features are kept from the first group that needs them to the last.
inline constexpr int32_t kLayersPerGroup = 4;

// Features of one tile on the device. Holds pooled workspace until destroyed.
class PreparedTile {
 public:
  virtual ~PreparedTile() = default;
  virtual uint64_t bytes() const = 0;
  // Once target layers [0, source_layers()) are mapped, the source is read no more.
  virtual int32_t source_layers() const = 0;
};

struct TileSource {
  const kv::KvView* view = nullptr;    // the source's geometry, any dtype
  kv::TokenRange tokens;               // of `view`
  std::span<const int64_t> positions;  // [tokens.size()]: one per token of the range
  bool keys_are_roped = true;          // false: keys are already un-rotated
  SourceUse use = SourceUse::kAtOnce;
};

// Seen on every element that was written, not on a sample.
struct TileChecks {
  uint64_t non_finite = 0;
  uint64_t saturated = 0;  // did not fit the target dtype (fp16, fp8)
  float max_abs = 0;       // over finite elements, before conversion to the target dtype

  void Merge(const TileChecks& other) {
    non_finite += other.non_finite;
    saturated += other.saturated;
    max_abs = max_abs > other.max_abs ? max_abs : other.max_abs;
  }
};

// One tile's share of a call. Results are stored to tokens [target_begin, target_begin + tile
// tokens) of `target`.
struct TilePart {
  PreparedTile* tile = nullptr;
  const kv::KvView* target = nullptr;
  int64_t target_begin = 0;
  // Polled between units of work of about a millisecond, by any worker and by several at once.
  absl::FunctionRef<bool()> cancelled;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu-amx", "cpu-avx512bf16", "cpu-avx2", "cpu-portable", "cuda".
  virtual std::string name() const = 0;

  // Copies and lays out the weights. Refuses NaN and infinity (INVALID_ARGUMENT naming the tensor).
  // RESOURCE_EXHAUSTED when the device has no room. Where `verify` is given, reads the weights as
  // it shows them, and fails as it fails; empty = they were verified before.
  virtual absl::StatusOr<std::unique_ptr<ResidentMapper>> MakeResident(
      std::shared_ptr<const mapper::Mapper> mapper, Precision precision,
      const VerifyWeights& verify) = 0;

  // What admission charges: bytes that a tile of `tokens` holds, and bytes that a call which maps
  // `tokens` takes on top while it runs.
  virtual uint64_t TileBytes(const ResidentMapper& mapper, int64_t tokens, SourceUse use) const = 0;
  virtual uint64_t CallBytes(const ResidentMapper& mapper, int64_t tokens) const = 0;

  virtual absl::StatusOr<std::unique_ptr<PreparedTile>> Prepare(const ResidentMapper& mapper,
                                                                const TileSource& source) = 0;

  // Maps target layers [layers) of every part, each weight read once for all of them. One answer
  // per part, in order; no part's answer or bytes depend on the others. CANCELLED, once its
  // `cancelled` said true, leaves that part's target partly written.
  virtual std::vector<absl::StatusOr<TileChecks>> MapTogether(const ResidentMapper& mapper,
                                                              kv::LayerRange layers,
                                                              std::span<const TilePart> parts) = 0;

  // The same for one tile.
  absl::StatusOr<TileChecks> MapLayers(const ResidentMapper& mapper, PreparedTile& tile,
                                       kv::LayerRange layers, const kv::KvView& target,
                                       int64_t target_begin, absl::FunctionRef<bool()> cancelled) {
    const TilePart part{&tile, &target, target_begin, cancelled};
    return std::move(MapTogether(mapper, layers, {&part, 1}).front());
  }
};

}  // namespace kvbridge::device
