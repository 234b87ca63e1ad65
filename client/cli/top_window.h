// What a server decided lately, as `kvbridge top` counts it from the events that it watches.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "kvbridge/v1/events.pb.h"

namespace kvbridge::cli {

struct Decisions {
  int64_t applied = 0;
  int64_t fell_back = 0;         // unsupported ones included
  int64_t tokens = 0;            // covered by what was applied
  std::optional<double> p50_ms;  // of what was applied; none: nothing was
  std::optional<double> p99_ms;
  std::string last_reason;  // of the newest that fell back; empty: none did

  int64_t all() const { return applied + fell_back; }
  std::optional<double> fallback_share() const;
};

// Thread contract: one thread at a time.
class TopWindow {
 public:
  static constexpr absl::Duration kLength = absl::Seconds(60);
  static constexpr size_t kMost = 65536;  // events kept: beyond it the window is shorter

  // Nothing is known of what was before `started`.
  explicit TopWindow(absl::Time started) : started_(started) {}

  // Events come in the order of their `now`.
  void Add(absl::Time now, const v1::DecisionEvent& event);

  struct Reading {
    absl::Duration span;  // what was counted, at most kLength
    std::map<std::string, Decisions> routes;
    Decisions total;
    double PerSecond(int64_t count) const;
  };
  Reading Read(absl::Time now);

 private:
  struct Entry {
    absl::Time time;
    std::string route;
    bool applied = false;
    int64_t tokens = 0;
    double ms = 0;
    v1::Reason reason = v1::REASON_UNSPECIFIED;
  };

  void Forget(absl::Time before);

  absl::Time started_;  // or when the last one that was forgotten came
  std::deque<Entry> entries_;
};

}  // namespace kvbridge::cli
