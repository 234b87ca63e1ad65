#include "core/kv/positions.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::kv {
namespace {

absl::Status CheckLast(int64_t last, int64_t max_position) {
  if (max_position <= 0 || last < max_position) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("positions: expected below max_position ", max_position, ", got ", last));
}

}  // namespace

absl::StatusOr<Positions> Positions::Create(std::vector<int64_t> positions, int64_t max_position) {
  const auto first = std::find_if(positions.begin(), positions.end(),
                                  [](int64_t position) { return position != kPad; });
  const int64_t pads = first - positions.begin();
  if (first == positions.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "positions: expected at least 1 token that is not padding, got ", pads, " of padding"));
  }
  int64_t previous = kPad;
  for (auto it = first; it != positions.end(); previous = *it++) {
    if (*it > previous) continue;
    return absl::InvalidArgumentError(absl::StrCat("positions[", it - positions.begin(),
                                                   "]: expected > ", previous, ", got ", *it));
  }
  KVB_RETURN_IF_ERROR(CheckLast(positions.back(), max_position));
  return Positions(std::move(positions), pads);
}

absl::StatusOr<Positions> Positions::CreateRange(int64_t start, int64_t count,
                                                 int64_t max_position) {
  if (start < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("positions.start: expected 0 or more, got ", start));
  }
  if (count <= 0 || count > std::numeric_limits<int64_t>::max() - start) {
    return absl::InvalidArgumentError(absl::StrCat(
        "positions.count: expected at least 1 and start + count to fit 64 bits, got ", count));
  }
  KVB_RETURN_IF_ERROR(CheckLast(start + count - 1, max_position));
  std::vector<int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), start);
  return Positions(std::move(positions), 0);
}

}  // namespace kvbridge::kv
