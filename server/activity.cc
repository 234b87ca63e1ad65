#include "server/activity.h"

namespace kvbridge::server {

DecisionCounts& DecisionCounts::operator+=(const DecisionCounts& other) {
  applied += other.applied;
  fell_back += other.fell_back;
  tokens += other.tokens;
  return *this;
}

void Activity::Count(const std::string& route, absl::Time when, const DecisionCounts& counts) {
  const int64_t second = absl::ToUnixSeconds(when);
  base::MutexLock lock(&mutex_);
  seconds_.erase(seconds_.begin(), seconds_.upper_bound(second - kSeconds));
  seconds_[second][route] += counts;
}

Activity::Minute Activity::LastMinute(absl::Time now) const {
  const int64_t last = absl::ToUnixSeconds(now);
  const int64_t first = last - kSeconds + 1;
  Minute minute{.span = now - absl::FromUnixSeconds(first)};
  base::MutexLock lock(&mutex_);
  // A clock that was set back has left seconds that are still to come.
  for (auto it = seconds_.lower_bound(first); it != seconds_.end() && it->first <= last; ++it) {
    const auto& [second, routes] = *it;
    for (const auto& [route, counts] : routes) {
      minute.seconds[static_cast<size_t>(second - first)] += counts;
      minute.routes[route] += counts;
      minute.total += counts;
    }
  }
  return minute;
}

}  // namespace kvbridge::server
