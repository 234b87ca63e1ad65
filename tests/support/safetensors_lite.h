// A small, trusting safetensors reader for golden data. It believes the header: product code reads
// files through core/artifact, which does not. Anything unexpected ends the test with a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvbridge::test {

struct LiteTensor {
  std::string dtype;  // "F64", "F32", "BF16", "F16", "I64", "I32", "U8"
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;  // row-major, little-endian

  int64_t elements() const;
};

class SafetensorsLite {
 public:
  // `path` is relative to the repository root, e.g.
  // "tests/data/golden/rope/yarn/tables.safetensors".
  explicit SafetensorsLite(const std::string& path);

  const LiteTensor& operator[](const std::string& name) const;
  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }
  const std::map<std::string, LiteTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // All elements converted to the asked type; any stored dtype will do.
  std::vector<float> AsFloat(const std::string& name) const;
  std::vector<double> AsDouble(const std::string& name) const;
  std::vector<int64_t> AsInt64(const std::string& name) const;

 private:
  std::string path_;
  std::map<std::string, LiteTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The whole file, or the end of the test.
std::string ReadTestFile(const std::string& path);

}  // namespace kvbridge::test
