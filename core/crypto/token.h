// Unguessable ids, and comparing secrets without telling how much of them was right.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::crypto {

// 2 * `bytes` lower-case hex digits from the operating system's seeded generator.
absl::StatusOr<std::string> RandomHex(size_t bytes);

// Takes the same time wherever equally long inputs first differ. Their lengths are not hidden.
bool ConstantTimeEquals(absl::string_view a, absl::string_view b);

}  // namespace kvbridge::crypto
