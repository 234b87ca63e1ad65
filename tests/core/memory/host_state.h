// What a process holds of its host, to be compared before and after.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>

namespace kvbridge::memory {

// Open descriptors and mappings of regions. Heap growth maps too, so that only ours are counted.
struct HostState {
  long fds = 0;
  long region_maps = 0;

  static HostState Now() {
    HostState state;
    // The listing itself holds one descriptor, always.
    state.fds = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                              std::filesystem::directory_iterator());
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const auto has = [&line](const char* part) { return line.find(part) != std::string::npos; };
      if (has("memfd:") || has("/dev/shm/")) ++state.region_maps;
    }
    return state;
  }
  friend bool operator==(const HostState&, const HostState&) = default;
  friend std::ostream& operator<<(std::ostream& out, const HostState& state) {
    return out << state.fds << " descriptors, " << state.region_maps << " mapped regions";
  }
};

}  // namespace kvbridge::memory
