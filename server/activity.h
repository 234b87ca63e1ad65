// What was decided in the last minute, second by second, for a page that shows rates where no
// Prometheus is at hand. Fed with events once they have left the transfer's path.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"

namespace kvbridge::server {

struct DecisionCounts {
  int64_t applied = 0;
  int64_t fell_back = 0;  // unsupported ones included
  int64_t tokens = 0;     // covered by what was applied

  int64_t all() const { return applied + fell_back; }
  DecisionCounts& operator+=(const DecisionCounts& other);
  friend bool operator==(const DecisionCounts&, const DecisionCounts&) = default;
};

// Thread contract: every method may be called from any thread. Holds sixty entries per route that
// decided something in each of the last sixty seconds, and nothing older.
class Activity {
 public:
  static constexpr int kSeconds = 60;

  struct Minute {
    std::array<DecisionCounts, kSeconds> seconds;  // oldest first; the last one still runs
    std::map<std::string, DecisionCounts> routes;
    DecisionCounts total;
    absl::Duration span;  // from the first of `seconds` until now
  };

  void Count(const std::string& route, absl::Time when, const DecisionCounts& counts);
  Minute LastMinute(absl::Time now) const;

 private:
  mutable base::Mutex mutex_;
  std::map<int64_t, std::map<std::string, DecisionCounts>> seconds_
      ABSL_GUARDED_BY(mutex_);  // by Unix time
};

}  // namespace kvbridge::server
