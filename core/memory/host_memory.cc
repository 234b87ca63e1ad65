#include "core/memory/host_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "core/base/units.h"

namespace kvbridge::memory {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Files of /proc and /sys have no size to go by. Empty when there is none.
std::string Text(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

bool Exists(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(file, ignored);
}

// The number after `key` at the beginning of a line ("MemTotal:  123 kB", "inactive_file 456").
std::optional<uint64_t> Entry(const std::string& text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": "), absl::SkipEmpty());
    uint64_t value = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &value)) return value;
  }
  return std::nullopt;
}

// The only number of a file; "max" and the like are none.
std::optional<uint64_t> Number(const fs::path& file) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(Text(file), &value)) return std::nullopt;
  return value;
}

// Where the process's own memory cgroup is mounted. Inside a container with a cgroup namespace that
// is the mount's root.
struct Cgroup {
  fs::path folder;
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat
};

Cgroup OwnCgroup(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  const bool unified = Exists(mount / "cgroup.controllers");
  fs::path folder = unified ? mount : mount / "memory";
  for (absl::string_view line : absl::StrSplit(Text(root / "proc/self/cgroup"), '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[1] != (unified ? "" : "memory")) continue;
    const fs::path own = folder / std::string(absl::StripPrefix(parts[2], "/"));
    if (Exists(own / "memory.stat")) folder = own;
  }
  if (unified) return {folder, "memory.max", "memory.current", "inactive_file"};
  return {folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
}

}  // namespace

HostMemory ReadHostMemory(const fs::path& root) {
  const std::string meminfo = Text(root / "proc/meminfo");
  const auto kibibytes = [&meminfo](absl::string_view key) {
    const std::optional<uint64_t> value = Entry(meminfo, key);
    return value.has_value() ? *value * base::kKiB : kUnlimited;
  };
  HostMemory host{kibibytes("MemTotal"), kibibytes("MemAvailable"), std::nullopt};
  const Cgroup cgroup = OwnCgroup(root);
  const std::optional<uint64_t> limit = Number(cgroup.folder / cgroup.limit);
  // Version 1 says "unlimited" as a number that no machine has.
  if (!limit.has_value() || *limit >= host.total) return host;
  host.cgroup_limit = limit;
  const uint64_t usage = Number(cgroup.folder / cgroup.usage).value_or(0);
  const uint64_t cache = Entry(Text(cgroup.folder / "memory.stat"), cgroup.reclaimable).value_or(0);
  const uint64_t held = usage - std::min(cache, usage);
  host.available = std::min(host.available, *limit - std::min(held, *limit));
  return host;
}

}  // namespace kvbridge::memory
