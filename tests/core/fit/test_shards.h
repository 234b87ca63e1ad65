// Shards of our own format for tests: seeded random rows of two small models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/artifact/safetensors.h"
#include "core/fit/shard.h"

namespace kvbridge::fit {

// Two models of 3 x 2 x 8 and 2 x 2 x 8 that may be mapped onto each other; the target's keys carry
// an attention factor.
SpecPair SmallPair();

struct TestShard {
  std::string sequence_id = "a";
  std::string domain = "general";
  std::string keys = "roped";
  SpecPair specs = SmallPair();
  int64_t rows = 16;
  int64_t first_position = 0;
  uint32_t seed = 1;
  float mean = 0;  // of every number
  artifact::StDType dtype = artifact::StDType::kF32;
};

// A file's tensors and metadata, to be spoilt before they are written.
struct ShardFile {
  struct Tensor {
    artifact::StDType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> data;
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;

  float* floats(const std::string& name) {
    return reinterpret_cast<float*>(tensors.at(name).data.data());
  }
  void Write(const std::filesystem::path& path) const;
};

ShardFile MakeShard(const TestShard& shard);

// `count` sequences "s00", "s01", ... of `rows` rows each.
void WriteShards(const std::filesystem::path& dir, int count, int64_t rows, float mean = 0);

}  // namespace kvbridge::fit
