#include "core/fit/moments.h"

namespace kvbridge::fit {

absl::string_view Name(Layout layout) {
  switch (layout) {
    case Layout::kFull:
      return "full";
    case Layout::kHeadLocal:
      return "head_local";
    case Layout::kJoint:
      return "joint";
  }
  return "unknown";
}

}  // namespace kvbridge::fit
