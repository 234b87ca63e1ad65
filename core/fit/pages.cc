#include "core/fit/pages.h"

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "core/base/units.h"

namespace kvbridge::fit {

absl::StatusOr<std::unique_ptr<Pages>> Pages::Map(uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory: the system has not ", base::HumanBytes(bytes)));
  }
  return std::unique_ptr<Pages>(new Pages(data, bytes));
}

Pages::~Pages() { munmap(data_, bytes_); }

}  // namespace kvbridge::fit
