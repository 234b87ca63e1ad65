// The commands: what each is told, and what runs it. Flags are read in app.cc.
//
// Each returns what the process ends with, or the error that ends it (ExitCodeFor).
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/exit_code.h"
#include "client/cli/handoff.h"
#include "client/cli/local_models.h"
#include "client/cli/output.h"
#include "client/cli/server_access.h"
#include "core/usage/command_tree.h"

namespace kvbridge::cli {

struct TransferFlags {
  HandoffFlags by;
  HandoffRequest request;
  std::string in;
  std::string out;
  bool fail_on_fallback = false;
};
absl::StatusOr<ExitCode> RunTransfer(const TransferFlags& flags, const Output& output,
                                     const std::stop_token& stop);

struct BenchFlags {
  HandoffFlags by;
  std::vector<int64_t> tokens = {64, 256, 1024};  // of the caches, a row each
  int32_t repetitions = 20;
  int32_t warm_up = 2;  // transfers before them that are not counted
  std::string baseline;
  double fail_if_slower = 0.1;
};
// Exit 1 when a median is slower than the baseline's by more than that share.
absl::StatusOr<ExitCode> RunBench(const BenchFlags& flags, const Output& output,
                                  const std::stop_token& stop);

struct InspectFlags {
  std::string artifact;  // either
  ConfigFlags configs;
  std::string config;    // or
  std::string pairing;   // "half", "interleaved"; empty = the model type's
  std::string longrope;  // "short", "long"
};
absl::StatusOr<ExitCode> RunInspect(const InspectFlags& flags, const Output& output);

struct PlanFlags {
  ServerAccess server;  // with route
  std::string route;
  std::string artifact;  // or
  ConfigFlags configs;
  std::string fit;  // or an experiment file
  int64_t prompt_tokens = 0;
  int32_t native_tail = 1;
  double prefill_rate = 0;
};
absl::StatusOr<ExitCode> RunPlan(const PlanFlags& flags, const Output& output);

// Two models that have no mapper yet.
struct PairFlags {
  ConfigFlags configs;
  int64_t sequences = 500;
  int64_t length = 1024;
  int64_t stride = 4;
  int32_t k = 8;
  bool head_local = false;
  uint64_t memory_bytes = 0;  // of the accumulator; 0 = no cap
  double capture_rate = 0;    // tokens per second, both models; 0 = not stated
  double prefill_rate = 0;    // the target's; 0 = not stated
  bool no_measure = false;    // sizes only
};
absl::StatusOr<ExitCode> RunPlanPair(const PairFlags& flags, const Output& output);

struct ServerFlags {
  ServerAccess server;
  std::string route;
  std::string path;  // artifact load: on the server's file system
};
absl::StatusOr<ExitCode> RunHealth(const ServerFlags& flags, const Output& output);
absl::StatusOr<ExitCode> RunArtifactLoad(const ServerFlags& flags, const Output& output);
absl::StatusOr<ExitCode> RunArtifactUnload(const ServerFlags& flags, const Output& output);
absl::StatusOr<ExitCode> RunArtifactList(const ServerFlags& flags, const Output& output);

struct DoctorFlags {
  ServerAccess server;                               // none = the host alone
  std::string socket = "/run/kvbridge/memory.sock";  // where a server here would listen
};
absl::StatusOr<ExitCode> RunDoctor(const DoctorFlags& flags, const Output& output);

struct RouteFlags {
  ServerAccess server;
  std::string route;
  std::string stage;    // "off", "shadow", "canary", "live"; empty = as it is
  std::string circuit;  // "auto", "closed", "open"; empty = as it is
  double canary_share = 0;
};
absl::StatusOr<ExitCode> RunRoutesList(const RouteFlags& flags, const Output& output);
absl::StatusOr<ExitCode> RunRoutesSet(const RouteFlags& flags, const Output& output);
// Until `stop`, or until the server ends it.
absl::StatusOr<ExitCode> RunEventsTail(const RouteFlags& flags, const Output& output,
                                       const std::stop_token& stop);

struct TopFlags {
  ServerAccess server;
  std::string admin;  // host:port of its admin HTTP, for what only that tells; empty = not asked
  double interval_seconds = 2;
  bool once = false;
};
// Until `stop`, or until the server ends it.
absl::StatusOr<ExitCode> RunTop(const TopFlags& flags, const Output& output,
                                const std::stop_token& stop);

struct ConvertFlags {
  std::string in;
  std::string out;
  ConfigFlags configs;
  std::string key_norm_from;
  std::string to = "native";
  bool overwrite = false;
};
absl::StatusOr<ExitCode> RunArtifactConvert(const ConvertFlags& flags, const Output& output,
                                            const std::stop_token& stop);

struct ValidateFlags {
  std::string run;
  std::string artifact;
  std::string gate;
  bool dry_run = false;  // judge, and leave the artifact as it is
};
absl::StatusOr<ExitCode> RunValidate(const ValidateFlags& flags, const Output& output,
                                     const std::stop_token& stop);

struct ScoreFlags {
  std::string file;
};
absl::StatusOr<ExitCode> RunValidateScore(const ScoreFlags& flags, const Output& output);

struct ChooseFlags {
  std::vector<std::string> runs;  // the first one's artifact stands
};
absl::StatusOr<ExitCode> RunValidateChoose(const ChooseFlags& flags, const Output& output);

struct RandomMapFlags {
  std::string artifact;
  std::string out;
  uint64_t seed = 0;
};
absl::StatusOr<ExitCode> RunValidateRandomMap(const RandomMapFlags& flags, const Output& output,
                                              const std::stop_token& stop);

struct ReportFlags {
  std::vector<std::string> artifacts;
  std::string out;
};
absl::StatusOr<ExitCode> RunReport(const ReportFlags& flags, const Output& output);

absl::StatusOr<ExitCode> RunVersion(const Output& output);

struct ManFlags {
  std::vector<std::string> page;  // a command's words, or the page's name; empty = kvbridge
  std::string dir;                // or all pages, into this folder
};
absl::StatusOr<ExitCode> RunMan(const ManFlags& flags, const usage::CommandTree& tree,
                                const Output& output);

struct CompletionFlags {
  std::string shell;  // "bash", "zsh", "fish"
};
absl::StatusOr<ExitCode> RunCompletion(const CompletionFlags& flags, const usage::CommandTree& tree,
                                       const Output& output);

}  // namespace kvbridge::cli
