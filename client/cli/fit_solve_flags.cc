#include "client/cli/fit_solve_flags.h"

#include "CLI/CLI.hpp"
#include "core/usage/command_tree.h"

namespace kvbridge::cli {

void AddSolveOptions(CLI::App* app, SolveFlags& f) {
  CLI::Option* k = app->add_option("--k", f.k, "Source layers for every target layer")
                       ->check(CLI::Range(1, 1 << 16));
  CLI::Option* sweep = app->add_flag("--sweep", f.sweep, "The one k that is best for all");
  app->add_option("--budget", f.budget_bytes,
                  "Bytes of weights, such as 500MB, spent where they help most; default: each "
                  "layer's best map, whatever its size")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->excludes(k)
      ->excludes(sweep);
  k->excludes(sweep);
  app->add_option("--support", f.support, "Whether a target head reads all source heads or its own")
      ->check(CLI::IsMember({"auto", "full", "head_local"}))
      ->capture_default_str();
  app->add_option("--order", f.order,
                  "Source layers by single-source probes, or one by one beside those chosen")
      ->check(CLI::IsMember({"forward", "probe"}))
      ->capture_default_str();
  app->add_option("--select", f.select, "One list of source layers for K and V, or two")
      ->check(CLI::IsMember({"joint", "separate"}))
      ->capture_default_str();
  app->add_flag("--no-cross", f.no_cross, "Of joint moments, K from K and V from V only");
  CLI::Option* lambda =
      app->add_option("--lambda", f.lambda, "Ridge; default: chosen by held-out error")
          ->check(CLI::NonNegativeNumber);
  app->add_option("--lambda-convention", f.lambda_convention, "What lambda is in units of")
      ->check(CLI::IsMember({"raw_gram", "gram_over_rows", "relative_mean_diagonal"}))
      ->needs(lambda)
      ->capture_default_str();
  app->add_option("--max-k", f.max_k, "Longest list that is tried without --k")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app->add_option("--key-weight", f.key_weight, "Of keys' errors against values'")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--value-weight", f.value_weight, "Of values' errors")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_flag("--no-refit", f.no_refit, "Don't fit on the held-out rows at the end");
  app->add_option("--dtype", f.dtype, "Of the weights; default bf16, as the prototype f32")
      ->check(CLI::IsMember({"bf16", "f32"}));
  app->add_option("--target-model", f.target_model,
                  "Target model's folder: renormalise keys with its k_norm, if it has one")
      ->type_name(usage::kFolder);
  app->add_option("--threads", f.threads, "Default: one per processor")->check(CLI::Range(1, 4096));
  app->add_flag("--as-prototype", f.as_prototype,
                "Select and fit as the Python prototype does: --k (default 4), --dtype, "
                "--target-model and --threads apply");
}

}  // namespace kvbridge::cli
