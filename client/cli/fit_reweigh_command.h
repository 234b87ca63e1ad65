// kvbridge fit reweigh: an artifact with weights that something else has tuned.
#pragma once

#include <stop_token>
#include <string>

#include "absl/status/statusor.h"

#include "client/cli/exit_code.h"
#include "client/cli/output.h"

namespace CLI {
class App;
}

namespace kvbridge::cli {

struct ReweighFlags {
  std::string artifact;
  std::string weights;
  std::string record;
  std::string out;
  bool overwrite = false;
};

void AddReweighOptions(CLI::App* app, ReweighFlags& flags);

// Writes the artifact; emits its digest.
absl::StatusOr<ExitCode> RunFitReweigh(const ReweighFlags& flags, const Output& output,
                                       const std::stop_token& stop);

}  // namespace kvbridge::cli
