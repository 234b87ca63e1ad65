// The groups of calls that access is granted by.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace kvbridge::server {

enum class MethodGroup : uint8_t {
  kTransfer,  // Transfer and the reports on it
  kPlan,      // what only asks: Plan, Health, GetCapabilities, WatchEvents
  kMemory,    // the Memory service
  kAdmin,     // the Admin service
};
inline constexpr std::array<absl::string_view, 4> kMethodGroupNames = {"transfer", "plan", "memory",
                                                                       "admin"};

inline absl::string_view Name(MethodGroup group) {
  return kMethodGroupNames[static_cast<size_t>(group)];
}

// nullopt unless `name` is one of the names.
inline std::optional<MethodGroup> ParseMethodGroup(absl::string_view name) {
  for (size_t i = 0; i < kMethodGroupNames.size(); ++i) {
    if (name == kMethodGroupNames[i]) return static_cast<MethodGroup>(i);
  }
  return std::nullopt;
}

}  // namespace kvbridge::server
