#include "core/artifact/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "core/base/units.h"

namespace kvbridge::artifact {
namespace {

constexpr size_t kDataAlignment = 64;

absl::Status CheckTensor(const std::string& name, const StTensor& tensor) {
  uint64_t bytes = ByteSize(tensor.dtype);
  bool fits = true;
  for (const int64_t dim : tensor.shape) {
    fits = fits && dim >= 0 && base::CheckedMul(bytes, static_cast<uint64_t>(dim), &bytes);
  }
  if (!fits || bytes != tensor.data.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": expected the bytes of ",
                                                   Name(tensor.dtype), " ", ShapeText(tensor.shape),
                                                   ", got ", tensor.data.size()));
  }
  return absl::OkStatus();
}

absl::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

absl::Status WriteSafeTensors(const std::filesystem::path& path,
                              const std::map<std::string, StTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<const std::string, StTensor>*> order;
  for (const auto& item : tensors) {
    KVB_RETURN_IF_ERROR(CheckTensor(item.first, item.second));
    order.push_back(&item);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return ByteSize(a->second.dtype) > ByteSize(b->second.dtype);
  });

  base::Json header = base::Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<absl::string_view> pieces(1);
  uint64_t at = 0;
  for (const auto* item : order) {
    const StTensor& tensor = item->second;
    header[item->first] = {{"dtype", std::string(Name(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, at + tensor.data.size()}}};
    pieces.push_back(AsText(tensor.data));
    at += tensor.data.size();
  }
  std::string prefix(sizeof(uint64_t), '\0');
  prefix += header.dump();
  prefix.resize((prefix.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  const uint64_t length = prefix.size() - sizeof(length);
  std::memcpy(prefix.data(), &length, sizeof(length));
  pieces[0] = prefix;
  return base::WriteFileAtomic(path, absl::MakeConstSpan(pieces));
}

}  // namespace kvbridge::artifact
