#include "client/cli/report_svg.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvbridge::cli {
namespace {

// Coordinates with at most one digit after the point: a tenth of a pixel.
std::string N(double value) {
  const double rounded = std::round(value * 10) / 10;
  return absl::StrCat(rounded == 0 ? 0.0 : rounded);
}

std::string List(const std::vector<Point>& points) {
  std::string out;
  for (const Point& point : points) {
    absl::StrAppend(&out, out.empty() ? "" : " ", N(point.x), ",", N(point.y));
  }
  return out;
}

std::string Titled(absl::string_view name, const std::string& attributes,
                   absl::string_view tooltip) {
  if (tooltip.empty()) return absl::StrCat("<", name, attributes, "/>");
  return absl::StrCat("<", name, attributes, "><title>", Escape(tooltip), "</title></", name, ">");
}

}  // namespace

std::string Fixed(double value, int digits) {
  std::string text = absl::StrFormat("%.*f", digits, value);
  // A minus sign as wide as a plus sign; and no "-0.00".
  if (text[0] != '-') return text;
  if (text.find_first_not_of("-0.") == std::string::npos) return text.substr(1);
  return absl::StrCat("−", text.substr(1));
}

std::string Percent(double share) { return absl::StrCat(Fixed(share * 100, 1), " %"); }

Svg::Svg(double width, double height, absl::string_view title)
    : width_(width), height_(height), title_(Escape(title)) {}

void Svg::Line(Point from, Point to, absl::string_view kind) {
  absl::StrAppend(&body_, "<line x1=\"", N(from.x), "\" y1=\"", N(from.y), "\" x2=\"", N(to.x),
                  "\" y2=\"", N(to.y), "\" class=\"", kind, "\"/>");
}

void Svg::Rect(Point corner, double width, double height, absl::string_view kind,
               absl::string_view tooltip, double opacity) {
  std::string attributes =
      absl::StrCat(" x=\"", N(corner.x), "\" y=\"", N(corner.y), "\" width=\"", N(width),
                   "\" height=\"", N(height), "\" class=\"", kind, "\"");
  if (opacity < 1) absl::StrAppend(&attributes, " fill-opacity=\"", Fixed(opacity, 2), "\"");
  absl::StrAppend(&body_, Titled("rect", attributes, tooltip));
}

void Svg::Circle(Point centre, double radius, absl::string_view kind, absl::string_view tooltip) {
  absl::StrAppend(&body_, Titled("circle",
                                 absl::StrCat(" cx=\"", N(centre.x), "\" cy=\"", N(centre.y),
                                              "\" r=\"", N(radius), "\" class=\"", kind, "\""),
                                 tooltip));
}

void Svg::Polyline(const std::vector<Point>& points, absl::string_view kind) {
  absl::StrAppend(&body_, "<polyline points=\"", List(points), "\" class=\"", kind, "\"/>");
}

void Svg::Polygon(const std::vector<Point>& points, absl::string_view kind) {
  absl::StrAppend(&body_, "<polygon points=\"", List(points), "\" class=\"", kind, "\"/>");
}

void Svg::Text(Point at, Anchor anchor, absl::string_view text, absl::string_view kind) {
  constexpr absl::string_view kAnchors[] = {"start", "middle", "end"};
  absl::StrAppend(&body_, "<text x=\"", N(at.x), "\" y=\"", N(at.y), "\" text-anchor=\"",
                  kAnchors[static_cast<int>(anchor)], "\" class=\"", kind, "\">", Escape(text),
                  "</text>");
}

void Svg::VerticalText(Point at, absl::string_view text, absl::string_view kind) {
  absl::StrAppend(&body_, "<text transform=\"translate(", N(at.x), " ", N(at.y),
                  ") rotate(-90)\" text-anchor=\"middle\" class=\"", kind, "\">", Escape(text),
                  "</text>");
}

std::string Svg::Finish() const {
  return absl::StrCat("<svg viewBox=\"0 0 ", N(width_), " ", N(height_),
                      "\" style=\"max-width:", N(width_ * 1.3), "px\" role=\"img\" aria-label=\"",
                      title_, "\">", body_, "</svg>\n");
}

}  // namespace kvbridge::cli
