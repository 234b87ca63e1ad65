// The four drawings of a report. Each is 340 units wide, readable on a phone at that size.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/report_data.h"
#include "core/evidence/bootstrap.h"

namespace kvbridge::cli {

inline constexpr double kChartWidth = 340;

// A dot with its interval, and the number beside it.
struct IntervalRow {
  std::string label;
  evidence::Estimate estimate;
  int colour = 0;          // of the page's series colours; -1 = grey
  bool sets_scale = true;  // false: may lie beyond the axis, drawn as an arrow at its end
};
std::string IntervalChart(const std::string& title, const std::vector<IntervalRow>& rows);

struct SeriesPoint {
  double x = 0;
  double y = 0;
  std::optional<std::pair<double, double>> interval = std::nullopt;
};
struct Series {
  std::string label;
  int colour = 0;
  bool dashed = false;
  std::vector<SeriesPoint> points;  // by x
};
struct Axes {
  std::string x;
  std::string y;
  bool log_x = false;
  bool percent = false;         // y is a share
  bool from_zero = true;        // y's axis begins at 0 or below
  std::optional<double> y_max;  // a bound that the axis keeps to, e.g. 1 for R²
};
// Labels stand at the ends of the lines. Empty where no series has a point.
std::string LineChart(const std::string& title, const std::vector<Series>& series,
                      const Axes& axes);

// Stronger is more; a mark is a ring (a dot, where cells are small) on what was chosen, with its
// place in the order as tooltip.
struct HeatMapOptions {
  std::string rows;                       // what a row is
  std::string columns;                    // what a column is
  std::vector<std::string> column_names;  // empty: numbers
  std::map<std::pair<int, int>, int> marks;
};
std::string HeatMap(const std::string& title, const Matrix& values, const HeatMapOptions& options);

}  // namespace kvbridge::cli
