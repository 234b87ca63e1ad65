#include "core/base/html.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

#include "core/base/utf8.h"

namespace kvbridge::base {
std::string EscapeHtml(absl::string_view text) {
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

}  // namespace kvbridge::base
