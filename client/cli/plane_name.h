// The source planes of a map in words.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

#include "core/kv/kv_view.h"
#include "core/mapper/mapper.h"

namespace kvbridge::cli {

// As a map of component `own` reads it: "3", or "V3" of the other component.
inline std::string PlaneName(const mapper::SourcePlane& plane, kv::Component own) {
  const char* other = plane.component == kv::Component::kKey ? "K" : "V";
  return absl::StrCat(plane.component == own ? "" : other, plane.layer);
}

}  // namespace kvbridge::cli
