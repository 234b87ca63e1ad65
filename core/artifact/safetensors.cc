#include "core/artifact/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "core/base/units.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// Root, tensor entry, shape: a valid header nests three deep.
constexpr int kMaxHeaderDepth = 4;

struct DTypeRow {
  StDType dtype;
  absl::string_view name;
  uint64_t bytes;
};
constexpr DTypeRow kDTypes[] = {
    {StDType::kF64, "F64", 8},   {StDType::kF32, "F32", 4},        {StDType::kF16, "F16", 2},
    {StDType::kBf16, "BF16", 2}, {StDType::kF8E4M3, "F8_E4M3", 1}, {StDType::kI64, "I64", 8},
    {StDType::kI32, "I32", 4},   {StDType::kU8, "U8", 1},          {StDType::kBool, "BOOL", 1},
};

// A name from the file, made safe to print.
std::string Quoted(absl::string_view name) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(name.substr(0, 80)), "\"");
}

absl::Status Bad(absl::string_view where, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", problem));
}

absl::StatusOr<absl::string_view> HeaderText(std::span<const std::byte> file,
                                             absl::string_view what) {
  uint64_t length = 0;
  if (file.size() < sizeof(length)) {
    return Bad(what, absl::StrCat("expected at least 8 bytes of header length, got a file of ",
                                  file.size()));
  }
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes) {
    return Bad(what,
               absl::StrCat("header length: expected at most ", kMaxHeaderBytes, ", got ", length));
  }
  if (length > file.size() - sizeof(length)) {
    return Bad(what,
               absl::StrCat("header length: expected at most the ", file.size() - sizeof(length),
                            " bytes left in the file, got ", length));
  }
  const absl::string_view header(reinterpret_cast<const char*>(file.data()) + sizeof(length),
                                 length);
  if (header.empty() || header[0] != '{') return Bad(what, "the header does not start with '{'");
  return header;
}

absl::StatusOr<StDType> DTypeOf(const Json& entry, absl::string_view where) {
  KVB_ASSIGN_OR_RETURN(const std::string name, base::GetString(entry, "dtype", where));
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return Bad(where, absl::StrCat("dtype: expected one of F64, F32, F16, BF16, F8_E4M3, I64, I32, "
                                 "U8, BOOL, got ",
                                 Quoted(name)));
}

absl::StatusOr<std::vector<int64_t>> CountsOf(const Json& entry, absl::string_view key,
                                              absl::string_view where) {
  KVB_ASSIGN_OR_RETURN(const Json* list, base::GetArray(entry, key, where));
  std::vector<int64_t> counts;
  counts.reserve(list->size());
  for (const Json& item : *list) {
    const bool fits = item.is_number_unsigned() && item.get<uint64_t>() <= uint64_t{INT64_MAX};
    if (!fits) {
      return Bad(
          where,
          absl::StrCat(key, ": expected integers of at least 0, got ",
                       item.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 80)));
    }
    counts.push_back(item.get<int64_t>());
  }
  return counts;
}

absl::StatusOr<uint64_t> BytesOf(StDType dtype, const std::vector<int64_t>& shape,
                                 absl::string_view where) {
  uint64_t bytes = ByteSize(dtype);
  for (const int64_t dim : shape) {
    if (!base::CheckedMul(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return Bad(where, absl::StrCat("shape ", ShapeText(shape), " overflows 64 bits"));
    }
  }
  return bytes;
}

struct Extent {
  uint64_t begin;
  uint64_t end;
  absl::string_view name;
};

absl::StatusOr<StTensor> ReadEntry(const Json& entry, std::span<const std::byte> data,
                                   absl::string_view where) {
  if (!entry.is_object()) return Bad(where, "expected an object");
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(entry, {"dtype", "shape", "data_offsets"}, where));
  StTensor tensor;
  KVB_ASSIGN_OR_RETURN(tensor.dtype, DTypeOf(entry, where));
  KVB_ASSIGN_OR_RETURN(tensor.shape, CountsOf(entry, "shape", where));
  KVB_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, CountsOf(entry, "data_offsets", where));
  if (offsets.size() != 2 || offsets[0] > offsets[1] ||
      static_cast<uint64_t>(offsets[1]) > data.size()) {
    return Bad(where, absl::StrCat("data_offsets: expected begin <= end <= ", data.size(), ", got ",
                                   ShapeText(offsets)));
  }
  KVB_ASSIGN_OR_RETURN(const uint64_t bytes, BytesOf(tensor.dtype, tensor.shape, where));
  const auto spanned = static_cast<uint64_t>(offsets[1] - offsets[0]);
  if (bytes != spanned) {
    return Bad(where,
               absl::StrCat("data_offsets: expected ", bytes, " bytes for ", Name(tensor.dtype),
                            " ", ShapeText(tensor.shape), ", got ", spanned));
  }
  tensor.data = data.subspan(static_cast<size_t>(offsets[0]), bytes);
  return tensor;
}

absl::Status CheckCoverage(const std::map<std::string, StTensor>& tensors,
                           std::span<const std::byte> data, absl::string_view what) {
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = static_cast<uint64_t>(tensor.data.data() - data.data());
    extents.push_back({begin, begin + tensor.data.size(), name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != at) {
      return Bad(what, absl::StrCat("tensor ", Quoted(extent.name), ": expected to begin at byte ",
                                    at, " of the data, got ", extent.begin,
                                    extent.begin < at ? " (overlap)" : " (hole)"));
    }
    at = extent.end;
  }
  if (at != data.size()) {
    return Bad(what, absl::StrCat("expected the tensors to cover ", data.size(),
                                  " bytes of data, got ", at));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, std::string>> ReadMetadata(const Json& value,
                                                                absl::string_view what) {
  if (!value.is_object()) return Bad(what, "__metadata__: expected an object of strings");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, item] : value.items()) {
    if (!item.is_string()) {
      return Bad(what, absl::StrCat("__metadata__.", Quoted(key), ": expected a string, got ",
                                    item.type_name()));
    }
    metadata.emplace(key, item.get<std::string>());
  }
  return metadata;
}

}  // namespace

absl::string_view Name(StDType dtype) { return kDTypes[static_cast<int>(dtype)].name; }
uint64_t ByteSize(StDType dtype) { return kDTypes[static_cast<int>(dtype)].bytes; }

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<SafeTensors> SafeTensors::Parse(std::span<const std::byte> file,
                                               absl::string_view what) {
  KVB_ASSIGN_OR_RETURN(const absl::string_view text, HeaderText(file, what));
  KVB_ASSIGN_OR_RETURN(const Json header, base::ParseStrictJson(text, absl::StrCat(what, " header"),
                                                                {.max_depth = kMaxHeaderDepth,
                                                                 .max_bytes = kMaxHeaderBytes}));
  const std::span<const std::byte> data = file.subspan(sizeof(uint64_t) + text.size());
  SafeTensors result;
  result.what_ = std::string(what);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      KVB_ASSIGN_OR_RETURN(result.metadata_, ReadMetadata(entry, what));
      continue;
    }
    const std::string where = absl::StrCat(what, " tensor ", Quoted(name));
    KVB_ASSIGN_OR_RETURN(StTensor tensor, ReadEntry(entry, data, where));
    result.tensors_.emplace(name, std::move(tensor));
  }
  KVB_RETURN_IF_ERROR(CheckCoverage(result.tensors_, data, what));
  return result;
}

absl::StatusOr<const StTensor*> SafeTensors::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return Bad(what_, absl::StrCat("tensor ", Quoted(name), " is missing"));
  }
  return &it->second;
}

absl::StatusOr<const StTensor*> SafeTensors::Find(const std::string& name, StDType dtype,
                                                  const std::vector<int64_t>& shape) const {
  KVB_ASSIGN_OR_RETURN(const StTensor* tensor, Find(name));
  if (tensor->dtype != dtype || tensor->shape != shape) {
    return Bad(what_, absl::StrCat("tensor ", Quoted(name), ": expected ", Name(dtype), " ",
                                   ShapeText(shape), ", got ", Name(tensor->dtype), " ",
                                   ShapeText(tensor->shape)));
  }
  return tensor;
}

}  // namespace kvbridge::artifact
