// Text on its way into a page.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace kvbridge::base {

// For text and for quoted attributes of HTML and SVG. Control characters and what is not UTF-8
// become U+FFFD.
std::string EscapeHtml(absl::string_view text);

}  // namespace kvbridge::base
