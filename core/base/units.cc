#include "core/base/units.h"

#include "absl/strings/str_format.h"

namespace kvbridge::base {

std::string HumanBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < kKiB) return absl::StrFormat("%d B", bytes);
  double value = static_cast<double>(bytes) / kKiB;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace kvbridge::base
