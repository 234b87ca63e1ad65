#include "core/fit/choose.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvbridge::fit {
namespace {

double Weight(const Curve& curve, const std::array<double, 2>& component_weight) {
  return component_weight[static_cast<size_t>(curve.component)];
}

// Whether `a` is to be preferred to `b`.
bool Better(const CurvePoint& a, const CurvePoint& b) {
  if (a.judged.error != b.judged.error) return a.judged.error < b.judged.error;
  return a.parameters < b.parameters;
}

// Indices of the points on the lower convex hull from the cheapest to the best, cheapest first.
std::vector<size_t> LowerHull(const std::vector<CurvePoint>& points) {
  std::vector<size_t> order(points.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (points[a].parameters != points[b].parameters) {
      return points[a].parameters < points[b].parameters;
    }
    return points[a].judged.error < points[b].judged.error;
  });
  const auto slope = [&](size_t a, size_t b) {
    return (points[a].judged.error - points[b].judged.error) /
           static_cast<double>(points[b].parameters - points[a].parameters);
  };
  std::vector<size_t> hull;
  for (size_t i : order) {
    if (!hull.empty() && !(points[i].judged.error < points[hull.back()].judged.error)) continue;
    while (hull.size() > 1 && slope(hull.back(), i) >= slope(hull[hull.size() - 2], hull.back())) {
      hull.pop_back();
    }
    hull.push_back(i);
  }
  return hull;
}

// One step along a hull.
struct Segment {
  double gain = 0;  // weighted error per parameter
  size_t curve = 0;
  size_t to = 0;  // index in the hull
};

}  // namespace

std::vector<size_t> ChooseFixed(std::span<const Curve> curves, mapper::Support support,
                                int32_t sources) {
  std::vector<size_t> chosen;
  for (const Curve& curve : curves) {
    size_t best = 0;
    size_t best_sources = 0;
    for (size_t i = 0; i < curve.points.size(); ++i) {
      const CurvePoint& point = curve.points[i];
      const size_t count = point.sources.size();
      if (point.support != support || count > static_cast<size_t>(sources)) continue;
      if (count > best_sources) std::tie(best, best_sources) = std::pair(i, count);
    }
    chosen.push_back(best);
  }
  return chosen;
}

std::vector<size_t> ChooseSweep(std::span<const Curve> curves,
                                std::array<double, 2> component_weight) {
  struct Entry {
    double error = 0;
    int64_t parameters = 0;
    size_t curves = 0;
  };
  std::map<std::pair<mapper::Support, size_t>, Entry> entries;
  for (const Curve& curve : curves) {
    for (const CurvePoint& point : curve.points) {
      Entry& entry = entries[{point.support, point.sources.size()}];
      entry.error += Weight(curve, component_weight) * point.judged.error;
      entry.parameters += point.parameters;
      ++entry.curves;
    }
  }
  auto best = entries.end();
  for (auto it = entries.begin(); it != entries.end(); ++it) {
    if (it->second.curves != curves.size()) continue;
    if (best == entries.end() || std::pair(it->second.error, it->second.parameters) <
                                     std::pair(best->second.error, best->second.parameters)) {
      best = it;
    }
  }
  return ChooseFixed(curves, best->first.first, static_cast<int32_t>(best->first.second));
}

std::vector<size_t> ChooseBest(std::span<const Curve> curves) {
  std::vector<size_t> chosen;
  for (const Curve& curve : curves) {
    size_t best = 0;
    for (size_t i = 1; i < curve.points.size(); ++i) {
      if (Better(curve.points[i], curve.points[best])) best = i;
    }
    chosen.push_back(best);
  }
  return chosen;
}

absl::StatusOr<std::vector<size_t>> ChooseWithinBudget(std::span<const Curve> curves,
                                                       std::array<double, 2> component_weight,
                                                       int64_t parameters) {
  std::vector<std::vector<size_t>> hulls;
  std::vector<Segment> segments;
  int64_t spent = 0;
  for (size_t c = 0; c < curves.size(); ++c) {
    const std::vector<CurvePoint>& points = curves[c].points;
    const std::vector<size_t>& hull = hulls.emplace_back(LowerHull(points));
    spent += points[hull.front()].parameters;
    for (size_t i = 1; i < hull.size(); ++i) {
      const CurvePoint& from = points[hull[i - 1]];
      const CurvePoint& to = points[hull[i]];
      const double gain = Weight(curves[c], component_weight) *
                          (from.judged.error - to.judged.error) /
                          static_cast<double>(to.parameters - from.parameters);
      segments.push_back({.gain = gain, .curve = c, .to = i});
    }
  }
  if (spent > parameters) {
    return absl::ResourceExhaustedError(
        absl::StrCat("budget: expected room for at least ", spent,
                     " parameters (the cheapest map of every layer), got ", parameters));
  }
  std::stable_sort(segments.begin(), segments.end(),
                   [](const Segment& a, const Segment& b) { return a.gain > b.gain; });
  std::vector<size_t> at(curves.size(), 0);
  for (const Segment& segment : segments) {
    if (at[segment.curve] + 1 != segment.to) continue;  // the one before it did not fit
    const auto& hull = hulls[segment.curve];
    const auto& points = curves[segment.curve].points;
    const int64_t cost =
        points[hull[segment.to]].parameters - points[hull[segment.to - 1]].parameters;
    if (spent + cost > parameters) continue;
    spent += cost;
    at[segment.curve] = segment.to;
  }
  for (size_t c = 0; c < curves.size(); ++c) at[c] = hulls[c][at[c]];
  return at;
}

int64_t TotalParameters(std::span<const Curve> curves, std::span<const size_t> chosen) {
  int64_t total = 0;
  for (size_t c = 0; c < curves.size(); ++c) total += curves[c].points[chosen[c]].parameters;
  return total;
}

}  // namespace kvbridge::fit
