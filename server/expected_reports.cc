#include "server/expected_reports.h"

namespace kvbridge::server {

void ExpectedReports::Expect(const std::string& request_id, const std::string& pair) {
  base::MutexLock lock(&mutex_);
  if (!pairs_.insert_or_assign(request_id, pair).second) return;
  order_.push_back(request_id);
  if (order_.size() <= kCapacity) return;
  pairs_.erase(order_.front());
  order_.pop_front();
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
