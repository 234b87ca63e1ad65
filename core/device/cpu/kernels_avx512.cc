// AVX-512 with BF16 dot products: entered only after a CPUID check (isa.cc).

#include <immintrin.h>

#define KVB_LANES 16
#define KVB_ROWS 8
#define KVB_STREAM(dst, v) \
  _mm256_stream_si256(reinterpret_cast<__m256i*>(dst), reinterpret_cast<__m256i>(v))
#include "core/device/cpu/generic_kernels.inc"

namespace kvbridge::device::cpu {
namespace {

void Nothing() {}

// Eight tokens by 32 columns: sixteen accumulators, two registers of B, one broadcast pair of A.
void DotBf16(const GemmArgs& g) {
  constexpr int32_t kStepWords = kBlockElements / 2;
  for (int32_t row = 0; row < kBlock; row += kRows) {
    float* c = g.c + row * kBlock;
    Accumulators acc;
    LoadC(c, g.accumulate, acc);
    const auto* b = static_cast<const int32_t*>(g.b);
    for (int32_t s = 0; s < g.segments; ++s) {
      const auto* a = static_cast<const int32_t*>(g.a[s]) + row * 16;
      for (int32_t k = 0; k < g.steps; ++k, a += kStepWords, b += kStepWords) {
        for (int32_t pair = 0; pair < kBlock / 2; ++pair) {
          const auto b0 = Load<__m512bh>(b + pair * 16);
          const auto b1 = Load<__m512bh>(b + 256 + pair * 16);
          for (int32_t r = 0; r < kRows; ++r) {
            const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(a[r * 16 + pair]));
            acc.v[r][0] = _mm512_dpbf16_ps(acc.v[r][0], x, b0);
            acc.v[r][1] = _mm512_dpbf16_ps(acc.v[r][1], x, b1);
          }
        }
      }
    }
    StoreC(c, acc);
  }
}

}  // namespace

void Avx512GemmF32(const GemmArgs& args) { GemmF32(args); }
void Avx512Finish(const FinishArgs& args, RowStats& stats) { Finish(args, stats); }
void Avx512PackBf16(const PackArgs& args) { PackBf16(args); }
void Avx512LayBf16(const LayArgs& args) { LayBf16(args); }
void Avx512Relu(const ReluArgs& args) { Relu(args); }

const KernelSet kAvx512Kernels = {"cpu-avx512bf16", Nothing,  Nothing, DotBf16, GemmF32,
                                  Finish,           PackBf16, LayBf16, Relu};

}  // namespace kvbridge::device::cpu
