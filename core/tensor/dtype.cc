#include "core/tensor/dtype.h"

#include "absl/strings/str_cat.h"

namespace kvbridge::tensor {
namespace {

struct Names {
  DType dtype;
  absl::string_view ours;
  absl::string_view hugging_face;
};

constexpr Names kNames[] = {
    {DType::kBf16, "bf16", "bfloat16"},
    {DType::kF16, "f16", "float16"},
    {DType::kF32, "f32", "float32"},
    {DType::kF8E4M3, "f8_e4m3", "float8_e4m3fn"},
};

}  // namespace

absl::string_view Name(DType dtype) {
  for (const Names& names : kNames) {
    if (names.dtype == dtype) return names.ours;
  }
  return "unknown";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const Names& names : kNames) {
    if (name == names.ours || name == names.hugging_face) return names.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype: expected one of bf16, f16, f32, f8_e4m3 (or bfloat16, float16, float32, "
                   "float8_e4m3fn), got \"",
                   name, "\""));
}

}  // namespace kvbridge::tensor
