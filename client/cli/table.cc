#include "client/cli/table.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "client/cli/printable.h"

namespace kvbridge::cli {
namespace {

// Characters as a terminal counts them: continuation bytes of UTF-8 take no room.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

bool IsNumber(const std::string& cell) {
  double unused;
  return absl::SimpleAtod(cell, &unused);
}

// Numbers, and dashes for those that are not known.
bool IsNumeric(const std::vector<std::vector<std::string>>& rows, size_t column) {
  bool any = false;
  for (const auto& row : rows) {
    if (!IsNumber(row[column]) && row[column] != "-") return false;
    any |= row[column] != "-";
  }
  return any;
}

std::string Line(const std::vector<std::string>& cells, const std::vector<size_t>& widths,
                 const std::vector<bool>& right) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string padding(widths[i] - Width(cells[i]), ' ');
    absl::StrAppend(&line, i == 0 ? "" : "  ", right[i] ? padding : "", cells[i],
                    right[i] ? "" : padding);
  }
  return std::string(absl::StripTrailingAsciiWhitespace(line));
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render(bool bold_header) const {
  std::vector<size_t> widths(header_.size());
  std::vector<bool> right(header_.size());
  for (size_t i = 0; i < header_.size(); ++i) {
    widths[i] = Width(header_[i]);
    for (const auto& row : rows_) widths[i] = std::max(widths[i], Width(row[i]));
    right[i] = IsNumeric(rows_, i);
  }
  const std::string head = Line(header_, widths, right);
  std::string text = bold_header ? absl::StrCat("\x1b[1m", head, "\x1b[0m\n") : head + "\n";
  for (const auto& row : rows_) absl::StrAppend(&text, Line(row, widths, right), "\n");
  return text;
}

std::string RenderFields(const std::vector<std::pair<std::string, std::string>>& fields) {
  size_t width = 0;
  for (const auto& [name, value] : fields) {
    if (!value.empty()) width = std::max(width, Width(name));
  }
  std::string text;
  for (const auto& [name, value] : fields) {
    if (value.empty()) continue;
    absl::StrAppend(&text, name, std::string(width - Width(name) + 2, ' '), Printable(value), "\n");
  }
  return text;
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

}  // namespace kvbridge::cli
