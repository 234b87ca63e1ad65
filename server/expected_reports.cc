#include "server/expected_reports.h"

namespace kvbridge::server {

std::optional<std::string> ExpectedReports::Expect(const std::string& request_id,
                                                   const std::string& pair) {
  base::MutexLock lock(&mutex_);
  if (!pairs_.insert_or_assign(request_id, pair).second) return std::nullopt;
  order_.push_back(request_id);
  if (order_.size() <= kCapacity) return std::nullopt;
  const auto oldest = pairs_.extract(order_.front());
  order_.pop_front();
  if (oldest.empty()) return std::nullopt;
  return oldest.mapped();
}

// Its place in the order stays: an id that comes again meanwhile is forgotten a little earlier.
bool ExpectedReports::Take(const std::string& request_id, absl::string_view pair) {
  base::MutexLock lock(&mutex_);
  const auto it = pairs_.find(request_id);
  if (it == pairs_.end() || it->second != pair) return false;
  pairs_.erase(it);
  return true;
}

}  // namespace kvbridge::server
