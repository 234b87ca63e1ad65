#include "client/cli/fit_flags.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "CLI/CLI.hpp"
#include "core/usage/command_tree.h"

namespace kvbridge::cli {
namespace {

CLI::App* AddCommand(CLI::App* parent, const char* name, const char* help,
                     const std::function<void(Command)>& choose, Command command) {
  CLI::App* app = parent->add_subcommand(name, help);
  app->fallthrough();
  app->callback([choose, command = std::move(command)] { choose(command); });
  return app;
}

// "2/7"; as a validator it answers what is wrong, so that a bad flag is a usage error.
std::string ReadMachine(const std::string& text, AccumulateFlags& f) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &f.machine) &&
      absl::SimpleAtoi(parts[1], &f.machines) && f.machine >= 1 && f.machine <= f.machines) {
    return "";
  }
  return absl::StrCat("expected I/N with I from 1 to N, got ", text);
}

// "code=2"
std::string ReadDomainWeight(const std::string& text, AccumulateFlags& f) {
  const size_t at = text.rfind('=');
  double weight = 0;
  if (at == std::string::npos || at == 0 || !absl::SimpleAtod(text.substr(at + 1), &weight) ||
      !std::isfinite(weight) || weight <= 0) {
    return absl::StrCat("expected DOMAIN=WEIGHT with a weight above 0, got ", text);
  }
  f.domain_weights[text.substr(0, at)] = weight;
  return "";
}

// What a whole fit takes too.
void AddShardOptions(CLI::App* app, AccumulateFlags& f) {
  app->add_option("--layout", f.layout,
                  "Which source columns explain which target columns: all heads, the same head, or "
                  "K and V together")
      ->check(CLI::IsMember({"full", "head_local", "joint"}))
      ->capture_default_str();
  app->add_option("--held-out", f.held_out, "Share of sequences that choose instead of fitting")
      ->capture_default_str();
  app->add_option("--seed", f.seed, "Of which are held out")->capture_default_str();
  app->add_option("--token-stride", f.token_stride, "Every n-th row of the shards")
      ->capture_default_str();
  app->add_option("--domain-weight", "Of each row of a domain; repeat for others")
      ->type_name("DOMAIN=WEIGHT")
      ->check([&f](const std::string& text) { return ReadDomainWeight(text, f); })
      ->expected(1, -1);
  app->add_option("--memory", f.memory_bytes, "Most of this process, such as 8GB; default: no cap")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app->add_option("--checkpoint-every", f.checkpoint_seconds, "Seconds")->capture_default_str();
  app->add_flag("--resume", f.resume, "Go on from the checkpoint of an interrupted run");
  app->add_flag("--keys-as-cached", f.keys_as_cached, "Don't un-rotate keys");
  app->add_option("--source-config", f.configs.source,
                  "Source model's config.json, for shards of the prototype")
      ->type_name(usage::kFile);
  app->add_option("--target-config", f.configs.target, "Target model's config.json")
      ->type_name(usage::kFile);
}

void AddAccumulate(CLI::App* fit, AccumulateFlags& f, const std::stop_token& stop,
                   const std::function<void(Command)>& choose) {
  CLI::App* app =
      AddCommand(fit, "accumulate", "Shards to moments, in one pass", choose,
                 [&f, stop](const Output& output) { return RunFitAccumulate(f, output, stop); });
  app->add_option("shards", f.shards, "Folder of shards")->type_name(usage::kFolder)->required();
  app->add_option("-o,--out", f.out, "Moments file")->type_name(usage::kFile)->required();
  AddShardOptions(app, f);
  app->add_option("--shard", "The I-th of N machines takes every N-th sequence")
      ->type_name("I/N")
      ->check([&f](const std::string& text) { return ReadMachine(text, f); });
  app->add_flag("--overwrite", f.overwrite, "Replace the moments file, or drop a checkpoint");
  app->add_flag("--dry-run", f.dry_run, "Say what it would take, and stop");
}

void AddMerge(CLI::App* fit, MergeFlags& f, const std::stop_token& stop,
              const std::function<void(Command)>& choose) {
  CLI::App* app =
      AddCommand(fit, "merge", "Add up moments of disjoint sequences", choose,
                 [&f, stop](const Output& output) { return RunFitMerge(f, output, stop); });
  app->add_option("moments", f.inputs, "Moments files")->type_name(usage::kFile)->required();
  app->add_option("-o,--out", f.out, "Moments file")->type_name(usage::kFile)->required();
  app->add_flag("--overwrite", f.overwrite, "Replace it");
}

void AddSolve(CLI::App* fit, SolveFlags& f, const std::stop_token& stop,
              const std::function<void(Command)>& choose) {
  CLI::App* app =
      AddCommand(fit, "solve", "Moments to an artifact", choose,
                 [&f, stop](const Output& output) { return RunFitSolve(f, output, stop); });
  app->add_option("--moments", f.moments, "Moments file")->type_name(usage::kFile)->required();
  app->add_option("-o,--out", f.out, "New artifact folder")->type_name(usage::kFolder)->required();
  app->add_flag("--overwrite", f.overwrite, "Replace an existing folder, atomically");
  app->add_option("--memory", f.memory_bytes, "Most for weights and workspaces, such as 8GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  AddSolveOptions(app, f);
}

void AddMlp(CLI::App* fit, MlpFlags& f, const std::stop_token& stop,
            const std::function<void(Command)>& choose) {
  CLI::App* app =
      AddCommand(fit, "mlp", "Networks beside an artifact's linear maps, or alone", choose,
                 [&f, stop](const Output& output) { return RunFitMlp(f, output, stop); });
  AddMlpOptions(app, f);
}

void AddReweigh(CLI::App* fit, ReweighFlags& f, const std::stop_token& stop,
                const std::function<void(Command)>& choose) {
  CLI::App* app =
      AddCommand(fit, "reweigh", "An artifact with weights that kvbridge-refine tuned", choose,
                 [&f, stop](const Output& output) { return RunFitReweigh(f, output, stop); });
  AddReweighOptions(app, f);
}

// `fit SHARDS -o DIR`, where no subcommand is named.
void AddWhole(CLI::App* fit, WholeFitFlags& f, const std::stop_token& stop,
              const std::function<void(Command)>& choose) {
  fit->add_option("shards", f.accumulate.shards, "Folder of shards: accumulate and solve")
      ->type_name(usage::kFolder);
  fit->add_option("-o,--out", f.solve.out, "New artifact folder")->type_name(usage::kFolder);
  fit->add_flag("--overwrite", f.solve.overwrite, "Replace an existing folder, atomically");
  fit->add_option("--keep-moments", f.keep_moments, "File to keep the moments in")
      ->type_name(usage::kFile);
  AddShardOptions(fit, f.accumulate);
  AddSolveOptions(fit, f.solve);
  fit->parse_complete_callback([&f, fit] {
    const bool whole = fit->get_subcommands().empty();
    if (whole && f.accumulate.shards.empty()) throw CLI::RequiredError("shards or a subcommand");
    if (whole && f.solve.out.empty()) throw CLI::RequiredError("--out");
    if (whole) return;
    for (const CLI::Option* option : fit->get_options()) {
      if (option->count() > 0) throw CLI::ExtrasError({option->get_name()});
    }
  });
  // A parent's callback comes after its subcommand's.
  fit->callback([&f, fit, stop, choose] {
    if (!fit->get_subcommands().empty()) return;
    choose([&f, stop](const Output& output) { return RunFit(f, output, stop); });
  });
}

}  // namespace

void AddFit(CLI::App& root, FitFlags& flags, const std::stop_token& stop,
            const std::function<void(Command)>& choose) {
  CLI::App* fit = root.add_subcommand("fit", "Fit a mapper: from shards to an artifact");
  fit->fallthrough();
  fit->require_subcommand(0, 1);
  AddWhole(fit, flags.whole, stop, choose);
  AddAccumulate(fit, flags.accumulate, stop, choose);
  AddMerge(fit, flags.merge, stop, choose);
  AddSolve(fit, flags.solve, stop, choose);
  AddMlp(fit, flags.mlp, stop, choose);
  AddReweigh(fit, flags.reweigh, stop, choose);
}

}  // namespace kvbridge::cli
