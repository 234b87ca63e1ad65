// Writes safetensors files whose bytes depend on their content only.
//
// Tensors lie in order of element size, largest first, then name, so each is aligned for its type;
// the header's keys are sorted and it is padded with spaces until the data begin at a multiple
// of 64.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "absl/status/status.h"

#include "core/artifact/safetensors.h"

namespace kvbridge::artifact {

// The file appears at `path` whole and fsynced, or not at all; an existing one is replaced.
// INVALID_ARGUMENT when a tensor's data and shape disagree, before anything is written.
absl::Status WriteSafeTensors(const std::filesystem::path& path,
                              const std::map<std::string, StTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace kvbridge::artifact
