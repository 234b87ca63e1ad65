// Plain tables for people. Programs read --format json.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvbridge::cli {

// Columns as wide as their widest cell, two spaces apart, numbers to the right; no trailing spaces.
// `bold_header` wraps the header in terminal codes.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  // As many cells as the header has; Printable is made of each.
  void AddRow(std::vector<std::string> cells);
  std::string Render(bool bold_header) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// "name   value" lines, values Printable; pairs with an empty value are left out.
std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields);

// "-" for an empty cell.
std::string OrDash(const std::string& text);

}  // namespace kvbridge::cli
