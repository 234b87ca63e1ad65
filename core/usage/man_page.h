// Manual pages, in the language of man(7).
//
// Thread contract: pure functions.
#pragma once

#include <string>
#include <vector>

#include "core/usage/command_tree.h"

namespace kvbridge::usage {

struct ManPage {
  std::string file;  // "kvbridge-artifact-load.1"
  std::string text;
};

// A page for the root and for each command below. `version` stands at the foot of each: "0.1.0".
// Nothing in them depends on time or place.
std::vector<ManPage> ManPages(const CommandTree& root, int section, const std::string& version);

}  // namespace kvbridge::usage
