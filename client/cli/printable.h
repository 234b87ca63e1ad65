// Text from elsewhere, servers and files, for a terminal: nothing in it may move a cursor, hide
// what follows or turn it round.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace kvbridge::cli {

// One line of UTF-8: control characters, line breaks, marks that change the direction of writing,
// and what is no UTF-8 become U+FFFD.
std::string Printable(absl::string_view text);

// The same of a JSON text in UTF-8, where each such character has its escape instead: the document
// stays what it is.
std::string PrintableJson(absl::string_view json);

}  // namespace kvbridge::cli
