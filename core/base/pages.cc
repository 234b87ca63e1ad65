#include "core/base/pages.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::base {
namespace {

// From here on the last large page, used in part, is worth it: where buffers are walked column by
// column, with small pages every step misses the TLB.
constexpr uint64_t kWorthLarge = 8 * Pages::kLarge;

}  // namespace

absl::StatusOr<std::unique_ptr<Pages>> Pages::Map(uint64_t bytes) {
  return bytes >= kWorthLarge ? MapLarge(bytes) : Map(bytes, 0);
}

absl::StatusOr<std::unique_ptr<Pages>> Pages::MapLarge(uint64_t bytes) {
  KVB_ASSIGN_OR_RETURN(std::unique_ptr<Pages> pages, Map(bytes, kLarge));
  madvise(pages->data_, bytes, MADV_HUGEPAGE);  // advice: refusal costs speed only
  return pages;
}

absl::StatusOr<std::unique_ptr<Pages>> Pages::Map(uint64_t bytes, uint64_t slack) {
  const uint64_t mapped = bytes + slack;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: the system has not ", HumanBytes(bytes)));
  }
  const uint64_t to_large = -reinterpret_cast<uintptr_t>(mapping) % kLarge;
  void* data = static_cast<std::byte*>(mapping) + (slack == 0 ? 0 : to_large);
  return std::unique_ptr<Pages>(new Pages(mapping, mapped, data, bytes));
}

Pages::~Pages() { munmap(mapping_, mapped_); }

}  // namespace kvbridge::base
