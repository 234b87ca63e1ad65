#include "core/kv/token_set.h"

#include <algorithm>

namespace kvbridge::kv {
namespace {

// The first range that ends after `token`: the one that holds it, or the next.
template <typename Ranges>
auto FirstEndingAfter(Ranges& ranges, int64_t token) {
  return std::upper_bound(ranges.begin(), ranges.end(), token,
                          [](int64_t t, const TokenRange& range) { return t < range.end; });
}

}  // namespace

int64_t TokenSet::CountIn(TokenRange range) const {
  int64_t count = 0;
  for (auto it = FirstEndingAfter(ranges_, range.begin);
       it != ranges_.end() && it->begin < range.end; ++it) {
    count += std::min(it->end, range.end) - std::max(it->begin, range.begin);
  }
  return count;
}

int64_t TokenSet::FirstIn(TokenRange range) const {
  const auto it = FirstEndingAfter(ranges_, range.begin);
  if (it == ranges_.end()) return range.end;
  return std::min(range.end, std::max(it->begin, range.begin));
}

int64_t TokenSet::FirstNotIn(TokenRange range) const {
  const auto it = FirstEndingAfter(ranges_, range.begin);
  if (it == ranges_.end() || it->begin > range.begin) return range.begin;
  return std::min(range.end, it->end);
}

void TokenSet::Insert(TokenRange range) {
  const auto next = FirstEndingAfter(ranges_, range.begin);
  const bool joins_next = next != ranges_.end() && next->begin == range.end;
  const bool joins_previous = next != ranges_.begin() && std::prev(next)->end == range.begin;
  if (joins_previous && joins_next) {
    std::prev(next)->end = next->end;
    ranges_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->end = range.end;
  } else if (joins_next) {
    next->begin = range.begin;
  } else {
    ranges_.insert(next, range);
  }
}

}  // namespace kvbridge::kv
