// Options that a command takes though they are the root's.
//
// Thread contract: pure functions.
#pragma once

#include <vector>

#include "core/usage/command_tree.h"

namespace kvbridge::usage {

// The root's options, without those that the command has itself; none for the root.
std::vector<Parameter> InheritedOptions(const CommandTree& root, const CommandTree& command);

}  // namespace kvbridge::usage
