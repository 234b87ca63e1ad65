#include "client/cli/screen.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include <sys/ioctl.h>
#include <unistd.h>

namespace kvbridge::cli {
namespace {

void Write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Bytes of the terminal code or of the character that `text` begins with, and whether it is a code.
std::pair<size_t, bool> Next(absl::string_view text) {
  size_t size = 1;
  if (text[0] == '\x1b') {
    while (size < text.size() && (text[size] < '@' || text[size] == '[')) ++size;
    return {std::min(size + 1, text.size()), true};
  }
  while (size < text.size() && (static_cast<uint8_t>(text[size]) & 0xc0) == 0x80) ++size;
  return {size, false};
}

std::string ClipLine(absl::string_view line, size_t columns) {
  std::string out;
  size_t used = 0;
  while (!line.empty()) {
    const auto [size, is_code] = Next(line);
    if (is_code || ++used <= columns) absl::StrAppend(&out, line.substr(0, size));
    line.remove_prefix(size);
  }
  return out;
}

}  // namespace

std::string Clip(absl::string_view text, size_t rows, size_t columns) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (lines.size() == rows) break;
    lines.push_back(ClipLine(line, columns));
  }
  return absl::StrJoin(lines, "\n");
}

Screen::Screen() { Write("\x1b[?1049h\x1b[?25l"); }

Screen::~Screen() { Write("\x1b[?25h\x1b[?1049l"); }

void Screen::Show(absl::string_view text) {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0;
  const std::string clipped = known ? Clip(text, size.ws_row, size.ws_col) : Clip(text, 24, 80);
  // Line by line over what stands there, so that it does not flicker.
  Write(
      absl::StrCat("\x1b[H", absl::StrReplaceAll(clipped, {{"\n", "\x1b[K\n"}}), "\x1b[K\x1b[J"));
}

}  // namespace kvbridge::cli
