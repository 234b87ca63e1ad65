// Transfers whose callers were asked to prefill as well, until they report: only these count, and
// each once, so that nobody can make up quality.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"

#include "core/base/mutex.h"

namespace kvbridge::server {

// Thread contract: every method may be called from any thread.
class ExpectedReports {
 public:
  // The oldest is forgotten when a new one comes to a full list.
  static constexpr size_t kCapacity = 4096;

  // The pair of the transfer that is forgotten for it, unreported.
  std::optional<std::string> Expect(const std::string& request_id, const std::string& pair);
  // False when none is expected; true only once.
  bool Take(const std::string& request_id, absl::string_view pair);

 private:
  base::Mutex mutex_;
  std::unordered_map<std::string, std::string> pairs_ ABSL_GUARDED_BY(mutex_);  // by request id
  std::deque<std::string> order_ ABSL_GUARDED_BY(mutex_);                       // oldest first
};

}  // namespace kvbridge::server
