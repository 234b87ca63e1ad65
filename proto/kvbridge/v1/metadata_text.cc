#include "proto/kvbridge/v1/metadata_text.h"

#include <algorithm>

namespace kvbridge::wire {

bool IsMetadataText(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace kvbridge::wire
