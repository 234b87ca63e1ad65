// How much memory this process may still take, so that a region that can't be had is refused
// instead of waking the kernel's out-of-memory killer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace kvbridge::memory {

struct HostMemory {
  uint64_t total = 0;                    // bytes of RAM
  uint64_t available = 0;                // that can be had now, the cgroup's limit included
  std::optional<uint64_t> cgroup_limit;  // none = unlimited
};

// From /proc and /sys under `root`. What can't be read counts as unlimited. Page cache that the
// kernel would give up counts as available.
HostMemory ReadHostMemory(const std::filesystem::path& root = "/");

}  // namespace kvbridge::memory
