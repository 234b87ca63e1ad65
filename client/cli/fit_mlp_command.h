// kvbridge fit mlp: networks beside a fitted artifact's linear maps, or alone.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"

#include "client/cli/exit_code.h"
#include "client/cli/output.h"
#include "core/fit/mlp.h"

namespace CLI {
class App;
}

namespace kvbridge::cli {

struct MlpFlags {
  std::string shards;
  std::string base;
  std::string out;
  fit::MlpOptions options;  // `work` and the hooks are set by the command
  bool overwrite = false;
};

void AddMlpOptions(CLI::App* app, MlpFlags& flags);

// Trains, writes the artifact, removes the finished networks that lay beside it; emits what each
// network gained.
absl::StatusOr<ExitCode> RunFitMlp(const MlpFlags& flags, const Output& output,
                                   const std::stop_token& stop);

}  // namespace kvbridge::cli
