// The baseline every x86-64 processor of the last fifteen years has.

#define KVB_LANES 4
#define KVB_ROWS 4
#define KVB_STREAM(dst, v) StoreTo(dst, v)
#include "core/device/cpu/generic_kernels.inc"

namespace kvbridge::device::cpu {
namespace {
void Nothing() {}
}  // namespace

const KernelSet kPortableKernels = {"cpu-portable", Nothing,  Nothing, GemmBf16, GemmF32,
                                    Finish,         PackBf16, LayBf16, Relu};

}  // namespace kvbridge::device::cpu
