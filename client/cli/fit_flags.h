// `kvbridge fit` and its subcommands: their flags, and what runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/commands.h"
#include "client/cli/exit_code.h"
#include "client/cli/fit_mlp_command.h"
#include "client/cli/fit_reweigh_command.h"
#include "client/cli/fit_solve_flags.h"
#include "client/cli/output.h"
#include "core/base/strict_json.h"
#include "core/fit/accumulate.h"

namespace CLI {
class App;
}

namespace kvbridge::cli {

struct AccumulateFlags {
  std::string shards;
  std::string out;
  std::string layout = "full";
  ConfigFlags configs;  // of prototype shards
  bool keys_as_cached = false;
  double held_out = 0.2;
  uint64_t seed = 0;
  int64_t token_stride = 1;
  std::map<std::string, double> domain_weights;
  int32_t machine = 1;  // of `machines`, which share the sequences
  int32_t machines = 1;
  uint64_t memory_bytes = 0;  // 0 = no cap
  double checkpoint_seconds = 60;
  bool resume = false;
  bool overwrite = false;
  bool dry_run = false;  // say the plan and stop
};
absl::StatusOr<fit::AccumulateOptions> AccumulateOptionsFrom(const AccumulateFlags& flags);
// Makes the moments file; answers what `fit accumulate` emits.
absl::StatusOr<base::Json> Accumulate(const AccumulateFlags& flags, const Output& output,
                                      const std::stop_token& stop);
absl::StatusOr<ExitCode> RunFitAccumulate(const AccumulateFlags& flags, const Output& output,
                                          const std::stop_token& stop);

struct MergeFlags {
  std::vector<std::string> inputs;
  std::string out;
  bool overwrite = false;
};
absl::StatusOr<ExitCode> RunFitMerge(const MergeFlags& flags, const Output& output,
                                     const std::stop_token& stop);

// Both in one. The moments lie beside the artifact while it runs, or where they are to be kept.
struct WholeFitFlags {
  AccumulateFlags accumulate;
  SolveFlags solve;
  std::string keep_moments;
};
absl::StatusOr<ExitCode> RunFit(WholeFitFlags flags, const Output& output,
                                const std::stop_token& stop);

struct FitFlags {
  AccumulateFlags accumulate;
  MergeFlags merge;
  SolveFlags solve;
  MlpFlags mlp;
  ReweighFlags reweigh;
  WholeFitFlags whole;
};

using Command = std::function<absl::StatusOr<ExitCode>(const Output&)>;

// Adds "fit" to `root`. `choose` is told the command of the subcommand that was named. `flags`
// outlives `root`.
void AddFit(CLI::App& root, FitFlags& flags, const std::stop_token& stop,
            const std::function<void(Command)>& choose);

}  // namespace kvbridge::cli
