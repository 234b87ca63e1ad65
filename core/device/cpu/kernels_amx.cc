// AMX: eight tile registers of 16 rows by 64 bytes. Entered only after a CPUID check and the
// kernel's permission (isa.cc).

#include <immintrin.h>

#include "core/device/cpu/kernels.h"

namespace kvbridge::device::cpu {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// In read-only memory: the intrinsic does not tell the compiler that it reads all of it.
constexpr TileConfig kConfig;

void Enter() { _tile_loadconfig(&kConfig); }

void Leave() { _tile_release(); }

constexpr int64_t kTile = 1024;            // bytes
constexpr int64_t kRowBytes = kBlock * 4;  // of C
constexpr int32_t kStrip = 16 * kBlock;    // floats of C in 16 tokens

inline void Prefetch(const char* p, int32_t lines) {
  for (int32_t i = 0; i < lines; ++i) _mm_prefetch(p + i * 64, _MM_HINT_T1);
}

// Two by two tiles of C in registers 0..3; A in 4 and 5, B in 6 and 7. Loads alternate with
// products so that each is under way while the other unit works.
void Gemm(const GemmArgs& g) {
  if (g.accumulate) {
    _tile_loadd(0, g.c, kRowBytes);
    _tile_loadd(1, g.c + 16, kRowBytes);
    _tile_loadd(2, g.c + kStrip, kRowBytes);
    _tile_loadd(3, g.c + kStrip + 16, kRowBytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const auto* b = static_cast<const char*>(g.b);
  const char* ahead_b = g.prefetch_b;
  for (int32_t s = 0; s < g.segments; ++s) {
    const auto* a = static_cast<const char*>(g.a[s]);
    for (int32_t k = 0; k < g.steps; ++k) {
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, 64);
      Prefetch(a + g.prefetch_a, g.lines_a);
      Prefetch(ahead_b, g.lines_b);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kTile, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTile, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      a += 2 * kTile;
      b += 2 * kTile;
      ahead_b += g.lines_b * 64;
    }
  }
  _tile_stored(0, g.c, kRowBytes);
  _tile_stored(1, g.c + 16, kRowBytes);
  _tile_stored(2, g.c + kStrip, kRowBytes);
  _tile_stored(3, g.c + kStrip + 16, kRowBytes);
}

}  // namespace

const KernelSet kAmxKernels = {"cpu-amx",      Enter,         Leave,
                               Gemm,           Avx512GemmF32, Avx512Finish,
                               Avx512PackBf16, Avx512LayBf16, Avx512Relu};

}  // namespace kvbridge::device::cpu
