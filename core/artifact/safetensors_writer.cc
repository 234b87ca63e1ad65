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

// False where the shape overflows or has negative dimensions.
bool BytesOf(const StShape& shape, uint64_t* bytes) {
  *bytes = ByteSize(shape.dtype);
  bool fits = true;
  for (const int64_t dim : shape.shape) {
    fits = fits && dim >= 0 && base::CheckedMul(*bytes, static_cast<uint64_t>(dim), bytes);
  }
  return fits;
}

// The order in which tensors lie.
std::vector<std::string> OrderOf(const std::map<std::string, StShape>& tensors) {
  std::vector<std::string> order;
  for (const auto& [name, shape] : tensors) order.push_back(name);
  std::stable_sort(order.begin(), order.end(), [&](const std::string& a, const std::string& b) {
    return ByteSize(tensors.at(a).dtype) > ByteSize(tensors.at(b).dtype);
  });
  return order;
}

absl::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

absl::StatusOr<StLayout> LayOutSafeTensors(const std::map<std::string, StShape>& tensors,
                                           const std::map<std::string, std::string>& metadata) {
  base::Json header = base::Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  StLayout layout;
  uint64_t at = 0;
  for (const std::string& name : OrderOf(tensors)) {
    const StShape& shape = tensors.at(name);
    uint64_t bytes = 0, end = 0;
    if (!BytesOf(shape, &bytes) || !base::CheckedAdd(at, bytes, &end)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\": shape ", ShapeText(shape.shape), " overflows"));
    }
    header[name] = {{"dtype", std::string(Name(shape.dtype))},
                    {"shape", shape.shape},
                    {"data_offsets", {at, end}}};
    layout.offsets[name] = at;
    at = end;
  }
  std::string& text = layout.header;
  text.assign(sizeof(uint64_t), '\0');
  text += header.dump();
  text.resize((text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  const uint64_t length = text.size() - sizeof(length);
  std::memcpy(text.data(), &length, sizeof(length));
  for (auto& [name, offset] : layout.offsets) offset += text.size();
  layout.file_bytes = text.size() + at;
  return layout;
}

absl::Status WriteSafeTensors(const std::filesystem::path& path,
                              const std::map<std::string, StTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::map<std::string, StShape> shapes;
  for (const auto& [name, tensor] : tensors) {
    const StShape& shape = shapes[name] = {tensor.dtype, tensor.shape};
    uint64_t bytes = 0;
    if (!BytesOf(shape, &bytes) || bytes != tensor.data.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\": expected the bytes of ", Name(tensor.dtype), " ",
                       ShapeText(tensor.shape), ", got ", tensor.data.size()));
    }
  }
  KVB_ASSIGN_OR_RETURN(const StLayout layout, LayOutSafeTensors(shapes, metadata));
  std::vector<absl::string_view> pieces = {layout.header};
  for (const std::string& name : OrderOf(shapes)) pieces.push_back(AsText(tensors.at(name).data));
  return base::WriteFileAtomic(path, absl::MakeConstSpan(pieces));
}

}  // namespace kvbridge::artifact
