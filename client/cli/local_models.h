// Artifacts and model configs on this machine's disk, for the commands that need no server.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "core/artifact/artifact.h"
#include "core/base/worker_pool.h"
#include "core/mapper/mapper.h"
#include "core/model/hf_config.h"
#include "core/model/model_spec.h"

namespace kvbridge::cli {

// The models' config.json, where an artifact carries no RoPE.
struct ConfigFlags {
  std::string source;
  std::string target;
};

// The spec that a config.json states; none when `path` is empty.
absl::StatusOr<std::optional<model::ModelSpec>> ReadConfig(
    const std::string& path, const model::HfConfigOptions& options = {});

// Loads and verifies an artifact.
absl::StatusOr<artifact::Artifact> LoadLocalArtifact(const std::string& dir,
                                                     const ConfigFlags& configs,
                                                     bool allow_missing_rope,
                                                     base::WorkerPool* pool);

// Bytes of its weights and biases.
uint64_t StoredBytes(const mapper::Mapper& mapper);

}  // namespace kvbridge::cli
