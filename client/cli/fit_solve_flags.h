// `kvbridge fit solve` and `kvbridge fit SHARDS`: their flags, and what runs them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/exit_code.h"
#include "client/cli/output.h"

namespace CLI {
class App;
}

namespace kvbridge::cli {

struct SolveFlags {
  std::string moments;
  std::string out;
  std::optional<int32_t> k;
  bool sweep = false;
  uint64_t budget_bytes = 0;  // 0 = none
  std::string support = "auto";
  std::string order = "forward";
  std::string select = "separate";
  bool no_cross = false;
  std::optional<double> lambda;  // none = chosen
  std::string lambda_convention = "relative_mean_diagonal";
  int32_t max_k = 8;
  double key_weight = 1;
  double value_weight = 1;
  bool no_refit = false;
  std::string dtype;         // "bf16", "f32"; empty = bf16, f32 as the prototype does
  std::string target_model;  // folder: keys are renormalised with its k_norm
  uint64_t memory_bytes = 0;
  int32_t threads = 0;
  bool as_prototype = false;
  bool overwrite = false;
};

// All but `moments` and `out`.
void AddSolveOptions(CLI::App* app, SolveFlags& flags);

// Reads moments, solves, writes the artifact; emits what was chosen and why.
absl::StatusOr<ExitCode> RunFitSolve(const SolveFlags& flags, const Output& output,
                                     const std::stop_token& stop);

}  // namespace kvbridge::cli
