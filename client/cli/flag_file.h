// Small files that flags name.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace kvbridge::cli {

// At most 1 MiB. An error names the flag and the file.
absl::StatusOr<std::string> ReadFlagFile(const char* flag, const std::string& path);

}  // namespace kvbridge::cli
