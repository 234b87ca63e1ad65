#include "core/engine/rate_meter.h"

#include <algorithm>

namespace kvbridge::engine {
namespace {

constexpr double kFade = 0.8;

}  // namespace

void RateMeter::Record(absl::string_view key, double units, absl::Duration elapsed,
                       absl::Time now) {
  if (!(units > 0) || elapsed <= absl::ZeroDuration()) return;
  base::MutexLock lock(&mutex_);
  if (sums_.size() >= kMaxKeys && !sums_.contains(key)) {
    sums_.erase(std::min_element(sums_.begin(), sums_.end(), [](const auto& a, const auto& b) {
      return a.second.last < b.second.last;
    }));
  }
  Sums& sums = sums_[key];
  sums.units = kFade * sums.units + units;
  sums.seconds = kFade * sums.seconds + absl::ToDoubleSeconds(elapsed);
  sums.recent[sums.count++ % kRecent] = absl::ToDoubleSeconds(elapsed) / units;
  sums.last = now;
}

std::optional<Rate> RateMeter::Get(absl::string_view key) const {
  base::MutexLock lock(&mutex_);
  const auto it = sums_.find(key);
  if (it == sums_.end()) return std::nullopt;
  return Rate{it->second.seconds / it->second.units, it->second.last};
}

std::optional<Rate> RateMeter::Fastest(absl::string_view key) const {
  base::MutexLock lock(&mutex_);
  const auto it = sums_.find(key);
  if (it == sums_.end()) return std::nullopt;
  const Sums& sums = it->second;
  const auto* end = sums.recent.begin() + std::min(sums.count, kRecent);
  return Rate{*std::min_element(sums.recent.begin(), end), sums.last};
}

}  // namespace kvbridge::engine
