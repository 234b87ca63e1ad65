#include "client/cli/printable.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "core/base/utf8.h"

namespace kvbridge::cli {
namespace {

// Of the character that `text` is.
uint32_t CodeOf(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (text.size() == 1) return lead;
  uint32_t code = lead & (0xff >> (text.size() + 1));
  for (const char next : text.substr(1)) code = code << 6 | (static_cast<uint8_t>(next) & 0x3f);
  return code;
}

bool MovesOrHides(uint32_t code) {
  const auto within = [code](uint32_t first, uint32_t last) {
    return code >= first && code <= last;
  };
  return code < 0x20 || within(0x7f, 0x9f) ||         // C0, DEL, C1
         code == 0x061c || within(0x200e, 0x200f) ||  // direction marks
         within(0x2028, 0x202e) ||                    // separators of lines, embeddings, overrides
         within(0x2066, 0x2069) || code == 0xfeff;    // isolates; no width
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t size = base::CharacterSize(text);
    const bool shown = size > 0 && !MovesOrHides(CodeOf(text.substr(0, size)));
    absl::StrAppend(&out, shown ? text.substr(0, size) : absl::string_view(base::kReplacement));
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

std::string PrintableJson(absl::string_view json) {
  std::string out;
  while (!json.empty()) {
    const size_t size = std::max<size_t>(1, base::CharacterSize(json));
    const uint32_t code = CodeOf(json.substr(0, size));
    // Below are the line breaks of the document itself: in strings they are escaped already.
    if (code >= 0x7f && MovesOrHides(code)) {
      absl::StrAppendFormat(&out, "\\u%04x", code);
    } else {
      absl::StrAppend(&out, json.substr(0, size));
    }
    json.remove_prefix(size);
  }
  return out;
}

}  // namespace kvbridge::cli
