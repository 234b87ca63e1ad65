#include "core/base/html.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace kvbridge::base {
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

}  // namespace

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
