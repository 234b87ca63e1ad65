#include "core/device/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvbridge::device::cpu {
namespace {

// Linux hands out the 8 KiB of tile state per thread only on request
// (Documentation/arch/x86/xstate.rst).
bool MayUseTiles() {
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool HasAmxBf16() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0 && MayUseTiles();
}

bool HasAvx512Bf16() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("fma");
}

bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

}  // namespace

const KernelSet& KernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kAmx:
      return kAmxKernels;
    case Isa::kAvx512Bf16:
      return kAvx512Kernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kPortable:
      break;
  }
  return kPortableKernels;
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  const bool avx512 = HasAvx512Bf16();
  if (avx512 && HasAmxBf16()) isas.push_back(Isa::kAmx);
  if (avx512) isas.push_back(Isa::kAvx512Bf16);
  if (HasAvx2()) isas.push_back(Isa::kAvx2);
  isas.push_back(Isa::kPortable);
  return isas;
}

}  // namespace kvbridge::device::cpu
