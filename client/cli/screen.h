// A terminal on loan: a picture that changes in place, and the terminal back as it was.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace kvbridge::cli {

// What of `text` fits into so many rows and columns: lines are cut, never wrapped. Terminal codes
// (ESC [ ... letter) take no room and are kept.
std::string Clip(absl::string_view text, size_t rows, size_t columns);

// From construction to destruction stdout, which is a terminal, shows another screen without a
// cursor. One at a time.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // In place of what it showed.
  void Show(absl::string_view text);
};

}  // namespace kvbridge::cli
