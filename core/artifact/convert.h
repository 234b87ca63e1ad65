// Turns artifacts of any readable format into native ones.
#pragma once

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"

#include "core/artifact/artifact.h"
#include "core/base/worker_pool.h"
#include "core/model/model_spec.h"

namespace kvbridge::artifact {

struct ConvertOptions {
  base::WorkerPool* pool = nullptr;  // required
  // From the models' config.json; required where the input carries no RoPE.
  std::optional<model::ModelSpec> source;
  std::optional<model::ModelSpec> target;
  // The target's Hugging Face folder: adds key renormalisation with its k_norm weights
  // (hf_weights.h).
  std::optional<std::filesystem::path> key_norm_from;
  bool overwrite = false;
  std::stop_token stop;  // CANCELLED, and nothing left behind
};

// CANCELLED when someone asked to stop, DATA_LOSS when what was read is not what was verified.
absl::Status CheckBeforeCommit(const Artifact& read, const std::stop_token& stop);

// Reads `in`, verifies it, writes `out`; returns the native digest. The same input and options give
// the same bytes. On any error `out` is as it was before.
absl::StatusOr<std::string> ConvertArtifact(const std::filesystem::path& in,
                                            const std::filesystem::path& out,
                                            const ConvertOptions& options);

}  // namespace kvbridge::artifact
