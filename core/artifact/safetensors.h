// A strict reader of the safetensors container: mapper weights, cache files, Hugging Face weights.
//
// File: u64 little-endian header length N, N bytes of JSON (an object of name -> {dtype, shape,
// data_offsets}, optional __metadata__ of strings, then spaces), then the data. Offsets count from
// the end of the header.
//
// Nothing is believed before it is checked: N against the file and 100,000,000; the header is
// UTF-8, starts with '{', repeats no key and nests no deeper than a header can; each entry holds
// exactly the three known fields; shapes multiply without overflow to the bytes their offsets span;
// the tensors together cover the data without hole, overlap or rest. What is allocated is bounded
// by the header, which lies in the file: a declared size alone allocates nothing.
//
// Thread contract: immutable after Parse; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::artifact {

// The element types this container accepts. Its users accept fewer.
enum class StDType : uint8_t { kF64, kF32, kF16, kBf16, kF8E4M3, kI64, kI32, kU8, kBool };

// "F64", "F32", "F16", "BF16", "F8_E4M3", "I64", "I32", "U8", "BOOL".
absl::string_view Name(StDType dtype);
uint64_t ByteSize(StDType dtype);

// One tensor, row-major, little-endian. `data` is borrowed and need not be aligned for its type.
struct StTensor {
  StDType dtype = StDType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;

  int64_t elements() const { return static_cast<int64_t>(data.size() / ByteSize(dtype)); }
};

class SafeTensors {
 public:
  // `file` is the whole file and must outlive the result; `what` names it in errors.
  // INVALID_ARGUMENT names the tensor, what was expected and what came.
  static absl::StatusOr<SafeTensors> Parse(std::span<const std::byte> file, absl::string_view what);

  const std::map<std::string, StTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // INVALID_ARGUMENT naming `name` when it is absent, or its dtype or shape differ.
  absl::StatusOr<const StTensor*> Find(const std::string& name) const;
  absl::StatusOr<const StTensor*> Find(const std::string& name, StDType dtype,
                                       const std::vector<int64_t>& shape) const;

 private:
  std::string what_;
  std::map<std::string, StTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// "[2, 64, 32]".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace kvbridge::artifact
