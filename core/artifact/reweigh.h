// An artifact with other weights: what a tool outside this program has tuned.
#pragma once

#include <filesystem>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"

#include "core/artifact/artifact.h"
#include "core/base/strict_json.h"

namespace kvbridge::artifact {

struct ReweighOptions {
  base::WorkerPool* pool = nullptr;  // required
  // Object that says how the weights were made: calibration.refined of the new artifact.
  base::Json record = base::Json::object();
  bool overwrite = false;
  std::stop_token stop;  // CANCELLED, and nothing left behind
};

// Reads the native artifact `in`, verifies it, and writes `out`: the same map with the tensors of
// the safetensors file `weights`, which are all of the artifact's, under their names, of their
// shapes and of its type of weights. Evidence is left out: it is about other weights. Returns the
// digest. On any error `out` is as it was before; INVALID_ARGUMENT names a tensor that is missing,
// of another shape or type, or not finite.
absl::StatusOr<std::string> ReweighArtifact(const std::filesystem::path& in,
                                            const std::filesystem::path& weights,
                                            const std::filesystem::path& out,
                                            const ReweighOptions& options);

}  // namespace kvbridge::artifact
