// AVX2 and FMA: entered only after a CPUID check (isa.cc).

#include <immintrin.h>

#define KVB_LANES 8
#define KVB_ROWS 4
#define KVB_STREAM(dst, v) \
  _mm_stream_si128(reinterpret_cast<__m128i*>(dst), reinterpret_cast<__m128i>(v))
#include "core/device/cpu/generic_kernels.inc"

namespace kvbridge::device::cpu {
namespace {
void Nothing() {}
}  // namespace

const KernelSet kAvx2Kernels = {"cpu-avx2", Nothing,  Nothing, GemmBf16, GemmF32,
                                Finish,     PackBf16, LayBf16, Relu};

}  // namespace kvbridge::device::cpu
