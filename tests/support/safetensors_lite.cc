#include "tests/support/safetensors_lite.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "nlohmann/json.hpp"

namespace kvbridge::test {
namespace {

[[noreturn]] void Die(const std::string& path, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", path.c_str(), why.c_str());
  std::abort();
}

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double HalfToDouble(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 0x1f) magnitude = mantissa != 0 ? NAN : INFINITY;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

float Bf16ToFloat(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

template <typename Out>
std::vector<Out> Convert(const LiteTensor& tensor, const std::string& where) {
  std::vector<Out> out(tensor.elements());
  const std::byte* at = tensor.bytes.data();
  for (size_t i = 0; i < out.size(); ++i) {
    if (tensor.dtype == "F64") {
      out[i] = static_cast<Out>(Load<double>(at + 8 * i));
    } else if (tensor.dtype == "F32") {
      out[i] = static_cast<Out>(Load<float>(at + 4 * i));
    } else if (tensor.dtype == "BF16") {
      out[i] = static_cast<Out>(Bf16ToFloat(Load<uint16_t>(at + 2 * i)));
    } else if (tensor.dtype == "F16") {
      out[i] = static_cast<Out>(HalfToDouble(Load<uint16_t>(at + 2 * i)));
    } else if (tensor.dtype == "I64") {
      out[i] = static_cast<Out>(Load<int64_t>(at + 8 * i));
    } else if (tensor.dtype == "I32") {
      out[i] = static_cast<Out>(Load<int32_t>(at + 4 * i));
    } else if (tensor.dtype == "U8") {
      out[i] = static_cast<Out>(Load<uint8_t>(at + i));
    } else {
      Die(where, "the dtype " + tensor.dtype + " is not read by tests");
    }
  }
  return out;
}

}  // namespace

int64_t LiteTensor::elements() const {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

std::string ReadTestFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) Die(path, "cannot be opened; tests run from the repository root");
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

SafetensorsLite::SafetensorsLite(const std::string& path) : path_(path) {
  const std::string file = ReadTestFile(path);
  const auto* bytes = reinterpret_cast<const std::byte*>(file.data());
  const auto header_length = Load<uint64_t>(bytes);
  const auto header = nlohmann::json::parse(file.substr(8, header_length), nullptr, false);
  if (header.is_discarded()) Die(path, "the header is not JSON");
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    const auto offsets = entry["data_offsets"].get<std::vector<uint64_t>>();
    const std::byte* data = bytes + 8 + header_length;
    tensors_[name] = {entry["dtype"].get<std::string>(),
                      entry["shape"].get<std::vector<int64_t>>(),
                      {data + offsets[0], data + offsets[1]}};
  }
}

const LiteTensor& SafetensorsLite::operator[](const std::string& name) const {
  auto it = tensors_.find(name);
  if (it == tensors_.end()) Die(path_, "has no tensor " + name);
  return it->second;
}

std::vector<float> SafetensorsLite::AsFloat(const std::string& name) const {
  return Convert<float>((*this)[name], path_);
}
std::vector<double> SafetensorsLite::AsDouble(const std::string& name) const {
  return Convert<double>((*this)[name], path_);
}
std::vector<int64_t> SafetensorsLite::AsInt64(const std::string& name) const {
  return Convert<int64_t>((*this)[name], path_);
}

}  // namespace kvbridge::test
