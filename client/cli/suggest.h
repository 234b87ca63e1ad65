// "did you mean": the nearest of a few known words.
#pragma once

#include <string>
#include <vector>

namespace kvbridge::cli {

// The word of `known` that is fewest edits away from `got` (insert, delete, replace, swap
// neighbours), if that is at most a third of its length, at least 1; else empty. The first of
// equals.
std::string NearestWord(const std::string& got, const std::vector<std::string>& known);

}  // namespace kvbridge::cli
