#include "client/cli/report_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/report_svg.h"

namespace kvbridge::cli {
namespace {

using Anchor = Svg::Anchor;

std::string Colour(int colour) { return colour < 0 ? "sg" : absl::StrCat("s", colour % 6); }

// 1, 2 or 5 times a power of ten: about `count` steps over `span`.
double NiceStep(double span, int count) {
  const double rough = span / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (rough <= factor * power * 1.0001) return factor * power;
  }
  return 10 * power;
}

// A linear axis that begins and ends at ticks.
struct Scale {
  double low = 0;
  double high = 1;
  double step = 0.5;

  static Scale Of(double low, double high, int count) {
    if (!(high > low)) high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
    Scale scale{.step = NiceStep(high - low, count)};
    scale.low = std::floor(low / scale.step + 1e-9) * scale.step;
    scale.high = std::ceil(high / scale.step - 1e-9) * scale.step;
    return scale;
  }
  double Place(double value) const { return (value - low) / (high - low); }
  int digits() const { return std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9))); }
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    for (int i = 0; low + i * step <= high + step / 2; ++i) ticks.push_back(low + i * step);
    return ticks;
  }
};

// "0.17–0.20"; nothing where it has no width to speak of.
std::string Range(const evidence::Estimate& e) {
  if (e.high - e.low < 0.0005) return "";
  return absl::StrCat(Fixed(e.low, 2), "–", Fixed(e.high, 2));
}

// Where the parts of a line chart are.
struct Frame {
  double left = 46;
  double right = kChartWidth - 84;
  double top = 10;
  double bottom = 158;
  static constexpr double kHeight = 200;
};

class LinePlot {
 public:
  LinePlot(const std::string& title, const std::vector<Series>& series, const Axes& axes)
      : svg_(kChartWidth, Frame::kHeight, title), series_(series), axes_(axes) {
    double low = std::numeric_limits<double>::max();
    double high = std::numeric_limits<double>::lowest();
    for (const Series& line : series) {
      for (const SeriesPoint& point : line.points) {
        low = std::min(low, point.interval ? point.interval->first : point.y);
        high = std::max(high, point.interval ? point.interval->second : point.y);
        xs_.push_back(point.x);
      }
    }
    std::sort(xs_.begin(), xs_.end());
    xs_.erase(std::unique(xs_.begin(), xs_.end()), xs_.end());
    if (xs_.empty()) return;
    if (axes.from_zero) low = std::min(low, 0.0);
    y_ = Scale::Of(low, high, 5);
    if (axes.y_max) y_.high = std::min(y_.high, *axes.y_max);
  }

  std::string Draw() {
    if (xs_.empty()) return "";
    DrawAxes();
    for (const Series& line : series_) DrawLine(line);
    DrawLabels();
    return svg_.Finish();
  }

 private:
  double X(double x) const {
    if (xs_.size() == 1) return (frame_.left + frame_.right) / 2;
    const auto place = [this](double v) { return axes_.log_x ? std::log2(v) : v; };
    const double share = (place(x) - place(xs_.front())) / (place(xs_.back()) - place(xs_.front()));
    return frame_.left + 6 + share * (frame_.right - frame_.left - 12);
  }
  double Y(double y) const {
    const double share = std::clamp(y_.Place(y), 0.0, 1.0);
    return frame_.bottom - share * (frame_.bottom - frame_.top);
  }

  void DrawAxes() {
    for (const double tick : y_.Ticks()) {
      if (tick > y_.high + 1e-9) continue;
      svg_.Line({frame_.left, Y(tick)}, {frame_.right, Y(tick)}, tick == 0 ? "zero" : "grid");
      const std::string text = axes_.percent
                                   ? absl::StrCat(Fixed(tick * 100, std::max(0, y_.digits() - 2)))
                                   : Fixed(tick, y_.digits());
      svg_.Text({frame_.left - 6, Y(tick) + 3.5}, Anchor::kEnd, text, "tick");
    }
    // As far apart as the widest needs, so that even steps stay even.
    size_t widest = 0;
    for (const double x : xs_) widest = std::max(widest, absl::StrFormat("%g", x).size());
    const double apart = 6 + 6.5 * static_cast<double>(widest);
    double last = -100;
    for (const double x : xs_) {
      if (X(x) - last < apart) continue;
      last = X(x);
      svg_.Text({X(x), frame_.bottom + 15}, Anchor::kMiddle, absl::StrFormat("%g", x), "tick");
    }
    svg_.Text({(frame_.left + frame_.right) / 2, frame_.bottom + 33}, Anchor::kMiddle, axes_.x,
              "name");
    svg_.VerticalText({11, (frame_.top + frame_.bottom) / 2}, axes_.y, "name");
  }

  void DrawLine(const Series& line) {
    const std::string colour = Colour(line.colour);
    std::vector<Point> points;
    for (const SeriesPoint& point : line.points) {
      points.push_back({X(point.x), Y(point.y)});
      if (!point.interval) continue;
      svg_.Line({X(point.x), Y(point.interval->first)}, {X(point.x), Y(point.interval->second)},
                absl::StrCat("whisker ", colour));
    }
    svg_.Polyline(points, absl::StrCat("line ", colour, line.dashed ? " dashed" : ""));
    for (size_t i = 0; i < points.size(); ++i) {
      const SeriesPoint& point = line.points[i];
      const std::string value = axes_.percent ? Percent(point.y) : Fixed(point.y, 3);
      svg_.Circle(points[i], points.size() > 24 ? 1.8 : 2.8,
                  absl::StrCat("dot ", colour, line.dashed ? " hollow" : ""),
                  absl::StrCat(line.label, ", ", absl::StrFormat("%g", point.x), ": ", value));
    }
  }

  // At the ends of the lines, pushed apart where they would touch.
  void DrawLabels() {
    constexpr double kApart = 13;
    std::vector<std::pair<double, const Series*>> labels;
    for (const Series& line : series_) {
      if (!line.points.empty()) labels.emplace_back(Y(line.points.back().y), &line);
    }
    std::stable_sort(labels.begin(), labels.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < labels.size(); ++i) {
      labels[i].first = std::max(labels[i].first, labels[i - 1].first + kApart);
    }
    double bound = frame_.bottom + 8;
    for (auto it = labels.rbegin(); it != labels.rend(); ++it) {
      it->first = std::min(it->first, bound);
      bound = it->first - kApart;
    }
    for (const auto& [y, line] : labels) {
      svg_.Text({frame_.right + 6, y + 3.5}, Anchor::kStart, line->label.substr(0, 14),
                absl::StrCat("label ", Colour(line->colour), line->dashed ? " faint" : ""));
    }
  }

  const Frame frame_;
  Svg svg_;
  const std::vector<Series>& series_;
  const Axes& axes_;
  std::vector<double> xs_;  // of all points, each once
  Scale y_;
};

// Sizes of a heat map's cells and where they begin.
struct Grid {
  int rows = 0;
  int columns = 0;
  double cell = 0;    // width
  double height = 0;  // of a cell
  static constexpr double kLeft = 34;
  static constexpr double kTop = 6;

  Grid(const Matrix& values) : rows(static_cast<int>(values.size())) {
    for (const auto& row : values) columns = std::max(columns, static_cast<int>(row.size()));
    cell = std::min(44.0, (kChartWidth - kLeft - 8) / std::max(1, columns));
    height = std::min(24.0, std::max(5.0, 300.0 / std::max(1, rows)));
  }
  Point corner(int row, int column) const { return {kLeft + column * cell, kTop + row * height}; }
  double bottom() const { return kTop + rows * height; }
  double gap() const { return std::min(cell, height) < 10 ? 0.4 : 1; }
};

struct Bounds {
  double low = std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::lowest();
};

Bounds BoundsOf(const Matrix& values) {
  Bounds bounds;
  for (const auto& row : values) {
    for (const auto& value : row) {
      if (!value) continue;
      bounds.low = std::min(bounds.low, *value);
      bounds.high = std::max(bounds.high, *value);
    }
  }
  return bounds;
}

void DrawCells(const Matrix& values, const Grid& grid, const Bounds& bounds,
               const HeatMapOptions& options, Svg* svg) {
  constexpr int kMaxTooltips = 1200;
  const double span = std::max(bounds.high - bounds.low, 1e-9);
  const bool numbers = grid.cell >= 26 && grid.height >= 14;
  for (int r = 0; r < grid.rows; ++r) {
    for (int c = 0; c < static_cast<int>(values[r].size()); ++c) {
      if (!values[r][c]) continue;
      const double value = *values[r][c];
      const double share = (value - bounds.low) / span;
      const Point at = grid.corner(r, c);
      std::string tooltip;
      if (grid.rows * grid.columns <= kMaxTooltips) {
        tooltip = absl::StrCat(options.rows, " ", r, ", ", options.columns, " ", c, ": ",
                               Fixed(value, 3));
      }
      svg->Rect(at, grid.cell - grid.gap(), grid.height - grid.gap(), "heat", tooltip,
                0.06 + 0.94 * share);
      if (!numbers) continue;
      svg->Text({at.x + grid.cell / 2, at.y + grid.height / 2 + 3.5}, Anchor::kMiddle,
                Fixed(value, 2), share > 0.5 ? "cell dark" : "cell");
    }
  }
}

void DrawMarks(const Grid& grid, const HeatMapOptions& options, Svg* svg) {
  for (const auto& [place, order] : options.marks) {
    if (place.first >= grid.rows || place.second >= grid.columns) continue;
    const Point at = grid.corner(place.first, place.second);
    const std::string tooltip =
        absl::StrCat("source ", order + 1, " of ", options.rows, " ", place.first);
    if (grid.cell < 14 || grid.height < 12) {  // a ring would fill it
      svg->Circle({at.x + grid.cell / 2, at.y + grid.height / 2}, 1.3, "spot", tooltip);
    } else {
      svg->Rect({at.x + 1, at.y + 1}, grid.cell - 2, grid.height - 2, "mark", tooltip);
    }
  }
}

void DrawHeatAxes(const Grid& grid, const HeatMapOptions& options, Svg* svg) {
  const auto every = [](int count, double size, double needed) {
    int step = 1;
    while (step * size < needed && step < count) step += step == 1 ? 1 : step == 2 ? 3 : step;
    return step;
  };
  const int row_step = every(grid.rows, grid.height, 12);
  for (int r = 0; r < grid.rows; r += row_step) {
    svg->Text({Grid::kLeft - 5, grid.corner(r, 0).y + grid.height / 2 + 3.5}, Anchor::kEnd,
              absl::StrCat(r), "tick");
  }
  const int column_step = every(grid.columns, grid.cell, 18);
  for (int c = 0; c < grid.columns; c += column_step) {
    svg->Text({grid.corner(0, c).x + grid.cell / 2, grid.bottom() + 13}, Anchor::kMiddle,
              options.column_names.empty() ? absl::StrCat(c) : options.column_names[c], "tick");
  }
  svg->VerticalText({9, (Grid::kTop + grid.bottom()) / 2}, options.rows, "name");
  svg->Text({Grid::kLeft, grid.bottom() + 31}, Anchor::kStart, options.columns, "name");
}

// A strip of five steps with the least and the largest value.
void DrawLegend(const Grid& grid, const Bounds& bounds, Svg* svg) {
  const double y = grid.bottom() + 23;
  const double x = kChartWidth - 44 - 5 * 12;
  svg->Text({x - 5, y + 8}, Anchor::kEnd, Fixed(bounds.low, 2), "tick");
  for (int i = 0; i < 5; ++i) svg->Rect({x + i * 12, y}, 12, 9, "heat", "", 0.06 + 0.94 * i / 4);
  svg->Text({x + 65, y + 8}, Anchor::kStart, Fixed(bounds.high, 2), "tick");
}

}  // namespace

std::string IntervalChart(const std::string& title, const std::vector<IntervalRow>& rows) {
  constexpr double kLeft = 92;
  constexpr double kRight = 232;
  constexpr double kRow = 22;
  double high = 0;
  for (const IntervalRow& row : rows) {
    if (row.sets_scale) high = std::max(high, row.estimate.high);
  }
  const Scale scale = Scale::Of(0, high, 3);
  const double bottom = 6 + kRow * static_cast<double>(rows.size());
  Svg svg(kChartWidth, bottom + 20, title);
  const auto x = [&](double value) {
    return kLeft + std::clamp(scale.Place(value), 0.0, 1.0) * (kRight - kLeft);
  };
  for (const double tick : scale.Ticks()) {
    svg.Line({x(tick), 4}, {x(tick), bottom}, tick == 0 ? "zero" : "grid");
    svg.Text({x(tick), bottom + 14}, Anchor::kMiddle, Fixed(tick, scale.digits()), "tick");
  }
  double y = 6 + kRow / 2;
  for (const IntervalRow& row : rows) {
    const evidence::Estimate& e = row.estimate;
    const std::string colour = Colour(row.colour);
    svg.Text({kLeft - 8, y + 4}, Anchor::kEnd, row.label, absl::StrCat("label ", colour));
    if (e.value > scale.high) {
      svg.Polygon({{kRight - 6, y - 4.5}, {kRight + 3, y}, {kRight - 6, y + 4.5}},
                  absl::StrCat("dot ", colour));
    } else {
      svg.Line({x(e.low), y}, {x(e.high), y}, absl::StrCat("whisker ", colour));
      svg.Circle({x(e.value), y}, 3.6, absl::StrCat("dot ", colour));
    }
    svg.Text({kRight + 44, y + 4}, Anchor::kEnd, Fixed(e.value, 3), "value");
    svg.Text({kChartWidth - 2, y + 4}, Anchor::kEnd, Range(e), "range");
    y += kRow;
  }
  return svg.Finish();
}

std::string LineChart(const std::string& title, const std::vector<Series>& series,
                      const Axes& axes) {
  return LinePlot(title, series, axes).Draw();
}

std::string HeatMap(const std::string& title, const Matrix& values, const HeatMapOptions& options) {
  const Grid grid(values);
  const Bounds bounds = BoundsOf(values);
  if (grid.columns == 0 || bounds.low > bounds.high) return "";
  Svg svg(kChartWidth, grid.bottom() + 38, title);
  DrawCells(values, grid, bounds, options, &svg);
  DrawMarks(grid, options, &svg);
  DrawHeatAxes(grid, options, &svg);
  DrawLegend(grid, bounds, &svg);
  return svg.Finish();
}

}  // namespace kvbridge::cli
