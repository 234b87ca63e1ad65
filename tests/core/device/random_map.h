// Random mappers and caches for tests of a device, and what the map must give, in plain double
// precision and as written in mapper.h: no tiles, no blocking, no shared code with the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "core/device/backend.h"
#include "core/kv/kv_view.h"
#include "core/mapper/mapper.h"

namespace kvbridge::device {

enum class Layout { kTokenMajor, kHeadMajor, kPaged };

// By cache lines, as the buffers of the process's pool.
template <typename T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kLine); }
  bool operator==(const LineAllocator&) const = default;
};

// A cache that owns its memory.
struct Cache {
  std::vector<std::byte, LineAllocator<std::byte>> bytes;
  std::vector<int32_t> pages;
  kv::KvView view;

  static std::unique_ptr<Cache> Make(const model::KvGeometry& geometry, int64_t tokens,
                                     Layout layout, float fp8_scale, std::mt19937& rng);
  // One head as FP32.
  std::vector<float> Head(int32_t layer, kv::Component c, int64_t token, int32_t head) const;
};

struct MapSpec {
  model::KvGeometry source{.layers = 3, .kv_heads = 2, .head_dim = 32};
  model::KvGeometry target{.layers = 3, .kv_heads = 2, .head_dim = 32};
  mapper::Support support = mapper::Support::kFull;
  int32_t top_k = 2;
  int32_t cross_k = 0;          // layers of the other component
  bool permute_heads = false;   // head-local: a(h) is not the identity
  std::vector<int32_t> hidden;  // widths of the network
  tensor::DType weight_dtype = tensor::DType::kBf16;
  mapper::KeyNorm::Kind key_norm = mapper::KeyNorm::Kind::kNone;
  bool strip_rope = true;
  model::RopeParams source_rope;  // rotary_dim 0: not rotated
  model::RopeParams target_rope;
  bool override_layer_0 = false;  // target layer 0 rotates with half the attention factor
};

model::RopeParams MakeRope(int32_t rotary_dim, model::Pairing pairing, double factor);

std::shared_ptr<mapper::Mapper> MakeMapper(const MapSpec& spec, std::mt19937& rng);

// A geometry, dtypes, rotations and norms drawn from what models have, odd sizes among them.
MapSpec RandomSpec(std::mt19937& rng);

// One tile over all of `source`.
struct Tile {
  std::vector<int64_t> positions;
  TileSource source;
  Tile(const Cache& cache, int64_t first_position);
};

// [tokens][target heads][head_dim] of one layer and component, before conversion to a cache's
// dtype.
std::vector<double> Reference(const mapper::Mapper& mapper, const TileSource& source, int32_t layer,
                              kv::Component c);

}  // namespace kvbridge::device
