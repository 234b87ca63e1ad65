#include "client/cli/flag_file.h"

#include "absl/strings/str_cat.h"

#include "core/base/file.h"
#include "core/base/units.h"

namespace kvbridge::cli {

absl::StatusOr<std::string> ReadFlagFile(const char* flag, const std::string& path) {
  auto text = base::ReadFile(path, base::kMiB);
  if (text.ok()) return text;
  return absl::Status(text.status().code(),
                      absl::StrCat(flag, ": ", path, ": ", text.status().message()));
}

}  // namespace kvbridge::cli
