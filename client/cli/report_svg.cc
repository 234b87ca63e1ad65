#include "client/cli/report_svg.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvbridge::cli {
namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";

// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
size_t CharacterSize(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t size = lead < 0x80   ? 1
                      : lead < 0xc2 ? 0
                      : lead < 0xe0 ? 2
                      : lead < 0xf0 ? 3
                      : lead < 0xf5 ? 4
                                    : 0;
  if (size == 0 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xc0) != 0x80) return 0;
  }
  const auto second = size > 1 ? static_cast<uint8_t>(text[1]) : 0;
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool outside = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : size;
}

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

std::string Escape(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t size = CharacterSize(text);
    const char c = text[0];
    const bool control = static_cast<uint8_t>(c) < 0x20 && c != '\n' && c != '\t';
    if (size == 0 || control || c == 0x7f) {
      out += kReplacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      absl::StrAppend(&out, text.substr(0, size));
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

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
