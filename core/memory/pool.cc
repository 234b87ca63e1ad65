#include "core/memory/pool.h"

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/memory/region.h"

namespace kvbridge::memory {

absl::StatusOr<kv::KvView> PoolPin::View(int64_t tokens, std::span<const int32_t> pages) const {
  if (tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: expected at least 1, got ", tokens));
  }
  const int64_t needed = (tokens - 1) / view_.tokens_per_page + 1;
  if (std::cmp_less(pages.size(), needed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("pages: expected ", needed, " for ", tokens, " tokens, got ", pages.size()));
  }
  absl::flat_hash_set<int32_t> seen;
  seen.reserve(static_cast<size_t>(needed));
  for (int64_t i = 0; i < needed; ++i) {
    const int32_t page = pages[i];
    if (page == -1) return absl::FailedPreconditionError(absl::StrCat("pages[", i, "]: evicted"));
    if (page < 0 || page >= pages_) {
      return absl::InvalidArgumentError(
          absl::StrCat("pages[", i, "]: expected 0 to ", pages_ - 1, ", got ", page));
    }
    if (!seen.insert(page).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("pages[", i, "]: expected distinct pages, got page ", page, " again"));
    }
  }
  kv::KvView view = view_;
  view.tokens = tokens;
  view.pages = pages.first(static_cast<size_t>(needed));
  return view;
}

absl::Status PoolPin::CheckWhole() const {
  for (const Region* region : unsealed_) KVB_RETURN_IF_ERROR(region->CheckWhole());
  return absl::OkStatus();
}

}  // namespace kvbridge::memory
