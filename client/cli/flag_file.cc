#include "client/cli/flag_file.h"

#include <filesystem>

#include "absl/strings/str_cat.h"

#include "core/base/file.h"
#include "core/base/units.h"

namespace kvbridge::cli {
namespace {

// Where `name` stands in a message as a word of its own, before a colon or the end.
size_t PlaceOf(const std::string& name, absl::string_view message) {
  for (size_t at = message.find(name); at != absl::string_view::npos;
       at = message.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool begins = at == 0 || message[at - 1] == ' ';
    if (begins && (end == message.size() || message[end] == ':')) return at;
  }
  return absl::string_view::npos;
}

}  // namespace

absl::StatusOr<std::string> ReadFlagFile(const char* flag, const std::string& path) {
  auto text = InFile(path, base::ReadFile(path, base::kMiB));
  if (text.ok()) return text;
  return absl::Status(text.status().code(), absl::StrCat(flag, ": ", text.status().message()));
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  const absl::string_view message = status.message();
  if (status.ok() || PlaceOf(path, message) != absl::string_view::npos) return status;
  const std::string name = std::filesystem::path(path).filename().string();
  const size_t at = name.empty() ? absl::string_view::npos : PlaceOf(name, message);
  if (at == absl::string_view::npos) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", message));
  }
  return absl::Status(status.code(),
                      absl::StrCat(message.substr(0, at), path, message.substr(at + name.size())));
}

}  // namespace kvbridge::cli
