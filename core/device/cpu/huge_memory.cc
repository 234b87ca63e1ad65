#include "core/device/cpu/huge_memory.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "core/base/units.h"

namespace kvbridge::device::cpu {
namespace {
constexpr size_t kLargePage = size_t{2} << 20;
}  // namespace

absl::StatusOr<HugeMemory> HugeMemory::Allocate(size_t bytes, base::WorkerPool& workers) {
  const size_t mapped = bytes + kLargePage;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("weights: the system has no ", base::HumanBytes(bytes), " to give"));
  }
  const auto address = reinterpret_cast<uintptr_t>(mapping);
  const uintptr_t aligned = (address + kLargePage - 1) & ~(kLargePage - 1);
  auto* data = reinterpret_cast<std::byte*>(aligned);
  // Advice: refusal costs speed only.
  madvise(data, bytes, MADV_HUGEPAGE);
  workers.ParallelFor(static_cast<int64_t>((bytes + kLargePage - 1) / kLargePage), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kLargePage;
    madvise(data + begin, std::min(kLargePage, bytes - begin), MADV_POPULATE_WRITE);
  });
  return HugeMemory(static_cast<std::byte*>(mapping), mapped, data, bytes);
}

HugeMemory::~HugeMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

HugeMemory::HugeMemory(HugeMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(other.mapped_),
      data_(other.data_),
      size_(other.size_) {}

}  // namespace kvbridge::device::cpu
