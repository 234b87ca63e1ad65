// Which instruction sets this machine offers, asked at run time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device/cpu/kernels.h"

namespace kvbridge::device {

// From the fastest to the one that always works.
enum class Isa : uint8_t { kAmx, kAvx512Bf16, kAvx2, kPortable };

}  // namespace kvbridge::device

namespace kvbridge::device::cpu {

const KernelSet& KernelsFor(Isa isa);

// Those of this machine, fastest first; never empty. Asks the operating system for the AMX state of
// this process, which lasts until it ends.
std::vector<Isa> SupportedIsas();

}  // namespace kvbridge::device::cpu
