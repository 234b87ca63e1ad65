// Text as UTF-8, which messages and pages demand. What callers send is, but cut at a byte it may
// not be; what files hold may be anything.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace kvbridge::base {

// U+FFFD.
inline constexpr char kReplacement[] = "\xef\xbf\xbd";

// Bytes of the character that `text`, which is not empty, begins with; 0 if it begins with none.
size_t CharacterSize(absl::string_view text);

// At most so many bytes of `text`, ending between two characters.
absl::string_view Clip(absl::string_view text, size_t most);

// With U+FFFD for each byte that is of no character.
std::string ValidUtf8(absl::string_view text);

}  // namespace kvbridge::base
