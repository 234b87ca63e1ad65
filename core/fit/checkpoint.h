// Where an accumulation stands, on disk: a safetensors file with `state` F64 [n] and the metadata
// format "kvbridge-accumulate-checkpoint", schema "1", fingerprint, step and block.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvbridge::fit {

struct Checkpoint {
  std::string fingerprint;        // of everything that the sums depend on
  uint64_t step = 0;              // the first that is not finished
  uint64_t block = 0;             // its first block that is not in `state`
  std::span<const double> state;  // empty where block == 0
  std::shared_ptr<const void> storage;
};

// Replaces the file atomically; one that was killed leaves `path`.partial. RESOURCE_EXHAUSTED when
// the disk is full.
absl::Status WriteCheckpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);

// INVALID_ARGUMENT when malformed, or when it has another fingerprint: other shards or options.
absl::StatusOr<Checkpoint> ReadCheckpoint(const std::filesystem::path& path,
                                          absl::string_view fingerprint);

}  // namespace kvbridge::fit
