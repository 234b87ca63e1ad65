#include "core/fit/pages.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "core/base/units.h"

namespace kvbridge::fit {
namespace {

// Rows are walked column by column: with small pages every step misses the TLB.
constexpr uint64_t kLargePage = uint64_t{2} << 20;
// From here on the last page, used in part, is worth it.
constexpr uint64_t kWorthLargePages = 8 * kLargePage;

}  // namespace

absl::StatusOr<std::unique_ptr<Pages>> Pages::Map(uint64_t bytes) {
  const bool large = bytes >= kWorthLargePages;
  const uint64_t mapped = large ? bytes + kLargePage : bytes;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: the system has not ", base::HumanBytes(bytes)));
  }
  void* data = mapping;
  if (large) {
    const auto address = reinterpret_cast<uintptr_t>(mapping);
    data = static_cast<std::byte*>(mapping) + (kLargePage - address % kLargePage) % kLargePage;
    madvise(data, bytes, MADV_HUGEPAGE);  // advice: refusal costs speed only
  }
  return std::unique_ptr<Pages>(new Pages(mapping, mapped, data));
}

Pages::~Pages() { munmap(mapping_, mapped_); }

}  // namespace kvbridge::fit
