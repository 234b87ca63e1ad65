// What this host allows kvbridge to do, and what to change where that is little.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvbridge::cli {

enum class Verdict { kOk, kWarn, kBad };
// "ok", "warn", "bad".
absl::string_view Name(Verdict verdict);

struct Finding {
  std::string check;  // "open_files"
  Verdict verdict = Verdict::kOk;
  std::string found;   // "1024"
  std::string why;     // why it matters
  std::string advice;  // what to do; empty when ok
};

// Reads /proc, /sys and /dev/shm under `root`, tries the system calls that regions need, and looks
// at the folder of the side socket `socket`. Takes no more than a few hundred KiB for a moment.
std::vector<Finding> CheckHost(const std::filesystem::path& root, const std::string& socket);

// Whether this process may connect to a server's side socket.
Finding CheckSideSocket(const std::string& path);

}  // namespace kvbridge::cli
