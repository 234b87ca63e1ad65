#include "client/cli/top_window.h"

#include <algorithm>
#include <vector>

#include "client/cli/spec_convert.h"
#include "core/base/nearest_rank.h"

namespace kvbridge::cli {
std::optional<double> Decisions::fallback_share() const {
  if (all() == 0) return std::nullopt;
  return static_cast<double>(fell_back) / static_cast<double>(all());
}

double TopWindow::Reading::PerSecond(int64_t count) const {
  return static_cast<double>(count) / std::max(1.0, absl::ToDoubleSeconds(span));
}

void TopWindow::Add(absl::Time now, const v1::DecisionEvent& event) {
  entries_.push_back({.time = now,
                      .route = event.pair(),
                      .applied = event.outcome() == v1::OUTCOME_APPLIED,
                      .tokens = event.covered_tokens(),
                      .ms = event.total_ms(),
                      .reason = event.reason()});
  Forget(now - kLength);
}

void TopWindow::Forget(absl::Time before) {
  while (!entries_.empty() && (entries_.front().time < before || entries_.size() > kMost)) {
    started_ = entries_.front().time;
    entries_.pop_front();
  }
}

TopWindow::Reading TopWindow::Read(absl::Time now) {
  Forget(now - kLength);
  Reading reading{.span = std::min(kLength, now - started_)};
  std::map<std::string, std::vector<double>> times;
  std::vector<double> all;
  for (const Entry& entry : entries_) {
    for (Decisions* each : {&reading.routes[entry.route], &reading.total}) {
      ++(entry.applied ? each->applied : each->fell_back);
      each->tokens += entry.tokens;
      if (!entry.applied) each->last_reason = EnumWord(v1::Reason_Name(entry.reason), "REASON_");
    }
    if (!entry.applied) continue;
    times[entry.route].push_back(entry.ms);
    all.push_back(entry.ms);
  }
  for (auto& [route, decisions] : reading.routes) {
    decisions.p50_ms = base::NearestRank(times[route], 0.5);
    decisions.p99_ms = base::NearestRank(times[route], 0.99);
  }
  reading.total.p50_ms = base::NearestRank(all, 0.5);
  reading.total.p99_ms = base::NearestRank(all, 0.99);
  return reading;
}

}  // namespace kvbridge::cli
