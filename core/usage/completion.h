// Scripts by which a shell completes a command line: commands, options, the words that a value may
// be, files and folders where those are asked for.
//
// Thread contract: pure functions.
#pragma once

#include <string>

#include "core/usage/command_tree.h"

namespace kvbridge::usage {

std::string BashCompletion(const CommandTree& root);  // bash 4.4 or newer, nothing else
std::string ZshCompletion(const CommandTree& root);
std::string FishCompletion(const CommandTree& root);

}  // namespace kvbridge::usage
