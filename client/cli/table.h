// Plain tables for people. Programs read --format json.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvbridge::cli {

// Columns as wide as their widest cell, two spaces apart, numbers to the right; no trailing spaces.
// `bold_header` wraps the header in terminal codes.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  // As many cells as the header has.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string Render(bool bold_header) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// "name   value" lines; pairs with an empty value are left out.
std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields);

// Text from a server, for a terminal: control characters, which could move its cursor or worse,
// become U+FFFD. UTF-8.
std::string Printable(absl::string_view text);

// "-" for an empty cell.
std::string OrDash(const std::string& text);

}  // namespace kvbridge::cli
