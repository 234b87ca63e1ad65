// Sizes for people: messages say "1.5 GiB", never 1610612736.
#pragma once

#include <cstdint>
#include <string>

namespace kvbridge::base {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// "512 B", "4.0 MiB", "2.1 GiB".
std::string HumanBytes(uint64_t bytes);

// a * b and a + b, or false when the result does not fit. Sizes that come from a file or a request
// are multiplied and added with these only.
[[nodiscard]] inline bool CheckedMul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
[[nodiscard]] inline bool CheckedAdd(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

}  // namespace kvbridge::base
