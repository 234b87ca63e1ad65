#include "core/base/utf8.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace kvbridge::base {

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

absl::string_view Clip(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

std::string ValidUtf8(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t size = CharacterSize(text);
    absl::StrAppend(&out, size == 0 ? absl::string_view(kReplacement) : text.substr(0, size));
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return out;
}

}  // namespace kvbridge::base
