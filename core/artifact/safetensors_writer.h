// Writes safetensors files whose bytes depend on their content only.
//
// Tensors lie in order of element size, largest first, then name, so each is aligned for its type;
// the header's keys are sorted and it is padded with spaces until the data begin at a multiple
// of 64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/artifact/safetensors.h"

namespace kvbridge::artifact {

struct StShape {
  StDType dtype = StDType::kF32;
  std::vector<int64_t> shape;
};

// Where everything lies in a file that is written piece by piece.
struct StLayout {
  std::string header;                       // the file's first bytes, length included
  std::map<std::string, uint64_t> offsets;  // of each tensor, from the beginning of the file
  uint64_t file_bytes = 0;
};

// INVALID_ARGUMENT for a shape that no file could hold.
absl::StatusOr<StLayout> LayOutSafeTensors(const std::map<std::string, StShape>& tensors,
                                           const std::map<std::string, std::string>& metadata);

// The file appears at `path` whole and fsynced, or not at all; an existing one is replaced.
// INVALID_ARGUMENT when a tensor's data and shape disagree, before anything is written.
absl::Status WriteSafeTensors(const std::filesystem::path& path,
                              const std::map<std::string, StTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace kvbridge::artifact
