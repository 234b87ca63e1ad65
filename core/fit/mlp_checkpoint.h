// A trained network on disk: a safetensors file of BF16 tensors `hidden.{i}`, `hidden_bias.{i}`,
// `out`, `bias` and the metadata format "kvbridge-network", schema "1", fingerprint, linear_error,
// error and epochs.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/fit/mlp_trainer.h"

namespace kvbridge::fit {

// Of what: `inputs` and `outputs` of the problem, the options' widths, and everything else that the
// weights depend on in one digest.
struct NetworkShape {
  int64_t inputs = 0;
  int64_t outputs = 0;
  std::vector<int32_t> hidden;
  std::string fingerprint;
};

// The file appears whole or not at all.
absl::Status WriteNetwork(const std::filesystem::path& path, const TrainedNetwork& network,
                          const NetworkShape& shape);

// INVALID_ARGUMENT when it is malformed, or has another fingerprint.
absl::StatusOr<TrainedNetwork> ReadNetwork(const std::filesystem::path& path,
                                           const NetworkShape& shape);

}  // namespace kvbridge::fit
