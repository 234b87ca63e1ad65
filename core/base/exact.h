// Numbers in messages as they are: StrCat rounds to six digits, and then 1.0000001 is "1".
#pragma once

#include <charconv>
#include <string>
#include <type_traits>

namespace kvbridge::base {

// The shortest text that reads as `value`; what is no floating-point number comes back as it is.
template <typename T>
auto Exact(const T& value) {
  if constexpr (std::is_floating_point_v<T>) {
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
  } else {
    return value;
  }
}

}  // namespace kvbridge::base
