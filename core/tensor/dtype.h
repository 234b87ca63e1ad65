// Element types of caches and weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::tensor {

enum class DType : uint8_t {
  kBf16,    // bfloat16
  kF16,     // IEEE half
  kF32,     // IEEE single
  kF8E4M3,  // OCP FP8 E4M3 ("fn": no infinity, NaN is 0x7f/0xff, largest finite 448); has scales
};

constexpr size_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kF8E4M3:
      return 1;
  }
  return 0;
}

// "bf16", "f16", "f32", "f8_e4m3".
absl::string_view Name(DType dtype);
// Accepts Name()'s words and Hugging Face's ("bfloat16", "float16", "float32", "float8_e4m3fn").
// INVALID_ARGUMENT names what came and what is known.
absl::StatusOr<DType> ParseDType(absl::string_view name);

}  // namespace kvbridge::tensor
