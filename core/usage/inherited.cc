#include "core/usage/inherited.h"

#include <algorithm>
#include <iterator>

namespace kvbridge::usage {

std::vector<Parameter> InheritedOptions(const CommandTree& root, const CommandTree& command) {
  std::vector<Parameter> inherited;
  std::copy_if(root.options.begin(), root.options.end(), std::back_inserter(inherited),
               [&command](const Parameter& option) {
                 return std::none_of(
                     command.options.begin(), command.options.end(),
                     [&option](const Parameter& own) { return own.names == option.names; });
               });
  return inherited;
}

}  // namespace kvbridge::usage
