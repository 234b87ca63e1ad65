// Files that flags name.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvbridge::cli {

// At most 1 MiB. An error names the flag and the file.
absl::StatusOr<std::string> ReadFlagFile(const char* flag, const std::string& path);

// What is below names a file or folder by its last part, for servers keep their paths to
// themselves. Here an error says the whole path, as the caller gave it: in place of that part, or
// before all.
absl::Status InFile(const std::string& path, const absl::Status& status);

template <typename T>
absl::StatusOr<T> InFile(const std::string& path, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return InFile(path, result.status());
}

}  // namespace kvbridge::cli
