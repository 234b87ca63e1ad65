// Text and shapes for a self-contained page: everything that comes from outside is escaped here.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "core/base/html.h"

namespace kvbridge::cli {

inline std::string Escape(absl::string_view text) { return base::EscapeHtml(text); }

// "0.231", "12.4 %", "2.1 [1.9, 2.3]"-free: one number, as short as `digits` after the point
// allows.
std::string Fixed(double value, int digits);
std::string Percent(double share);  // "64.6 %"

struct Point {
  double x = 0;
  double y = 0;
};

// One drawing in user units that are about pixels: charts are narrow enough for a phone, and a wide
// page puts several beside each other. `kind` is a class of the page's style sheet.
class Svg {
 public:
  // `title` is what a screen reader says.
  Svg(double width, double height, absl::string_view title);

  enum class Anchor { kStart, kMiddle, kEnd };

  void Line(Point from, Point to, absl::string_view kind);
  void Rect(Point corner, double width, double height, absl::string_view kind,
            absl::string_view tooltip = "", double opacity = 1);
  void Circle(Point centre, double radius, absl::string_view kind, absl::string_view tooltip = "");
  void Polyline(const std::vector<Point>& points, absl::string_view kind);
  void Polygon(const std::vector<Point>& points, absl::string_view kind);
  void Text(Point at, Anchor anchor, absl::string_view text, absl::string_view kind);
  // Turned by 90 degrees, reading upwards.
  void VerticalText(Point at, absl::string_view text, absl::string_view kind);

  std::string Finish() const;

 private:
  const double width_;
  const double height_;
  const std::string title_;
  std::string body_;
};

}  // namespace kvbridge::cli
