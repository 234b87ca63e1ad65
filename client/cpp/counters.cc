#include "client/cpp/counters.h"

#include <algorithm>

#include "client/cpp/router_words.h"

namespace kvbridge::client {

Counters::Counters() {
  const std::lock_guard lock(mutex_);
  for (const char* outcome :
       {"applied", "fallback_reprefill", "unsupported", "error", "cancelled"}) {
    counts_.requests[outcome] = 0;
  }
}

void Counters::CountResult(const TransferResult& result) {
  const std::lock_guard lock(mutex_);
  ++counts_.requests[std::string(ToRouterStatus(result.outcome))];
  if (result.outcome == v1::OUTCOME_FALLBACK_REPREFILL) ++counts_.fallbacks[result.reason];
  if (result.plane != v1::PLANE_UNSPECIFIED) {
    ++counts_.planes[result.plane == v1::PLANE_REGION ? "region" : "inline"];
    if (!result.plane_reason.empty()) ++counts_.plane_fallbacks[result.plane_reason];
  }
  counts_.duration_seconds_sum += absl::ToDoubleSeconds(result.timings.total);
  ++counts_.duration_seconds_count;
  counts_.retries += static_cast<uint64_t>(std::max(0, result.attempts - 1));
}

void Counters::CountOther(absl::string_view outcome, absl::Duration elapsed) {
  const std::lock_guard lock(mutex_);
  ++counts_.requests[std::string(outcome)];
  counts_.duration_seconds_sum += absl::ToDoubleSeconds(elapsed);
  ++counts_.duration_seconds_count;
}

CountersSnapshot Counters::Snapshot() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace kvbridge::client
