// What is wrong with a flag's number, for CLI11's check(): its own checks print the largest double
// where they have no upper bound. Empty = nothing.
#pragma once

#include <string>

namespace kvbridge::cli {

std::string NonNegative(const std::string& text);
std::string Positive(const std::string& text);

}  // namespace kvbridge::cli
