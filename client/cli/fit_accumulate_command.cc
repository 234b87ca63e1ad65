// kvbridge fit accumulate, kvbridge fit merge: shards to moments, moments to moments.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/fit_flags.h"
#include "client/cli/local_models.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/fit/accumulate.h"
#include "core/fit/merge.h"

namespace kvbridge::cli {
namespace {

using fit::Split;

std::string PlanLine(const fit::Accumulator& job) {
  const fit::AccumulatePlan& plan = job.plan();
  const fit::ShardFolder& folder = job.folder();
  return absl::StrFormat(
      "%d sequences, %d rows to fit on, %d held out; %.3g passes over %s in %d sweeps; memory %s",
      folder.sequences.size(), folder.rows(Split::kFit), folder.rows(Split::kHeldOut), plan.passes,
      base::HumanBytes(plan.data_bytes), plan.sweeps.size(), base::HumanBytes(plan.peak_bytes));
}

base::Json Document(const fit::Accumulator& job, const std::string& out) {
  const fit::AccumulatePlan& plan = job.plan();
  const fit::ShardFolder& folder = job.folder();
  return {{"schema", "kvbridge.fit-accumulate/v1"},
          {"out", out},
          {"sequences", folder.sequences.size()},
          {"fit_rows", folder.rows(Split::kFit)},
          {"held_out_rows", folder.rows(Split::kHeldOut)},
          {"passes", plan.passes},
          {"sweeps", plan.sweeps.size()},
          {"data_bytes", plan.data_bytes},
          {"peak_bytes", plan.peak_bytes}};
}

std::string DocumentText(const base::Json& document) {
  const auto number = [&](const char* name) { return absl::StrCat(document[name].get<int64_t>()); };
  const auto bytes = [&](const char* name) {
    return base::HumanBytes(document[name].get<uint64_t>());
  };
  return RenderFields({{"moments", document["out"].get<std::string>()},
                       {"sequences", number("sequences")},
                       {"fit rows", number("fit_rows")},
                       {"held-out rows", number("held_out_rows")},
                       {"passes", absl::StrFormat("%.3g", document["passes"].get<double>())},
                       {"shards", bytes("data_bytes")},
                       {"memory", bytes("peak_bytes")}});
}

}  // namespace

absl::StatusOr<fit::AccumulateOptions> AccumulateOptionsFrom(const AccumulateFlags& flags) {
  fit::AccumulateOptions options;
  options.layout = flags.layout == "joint"        ? fit::Layout::kJoint
                   : flags.layout == "head_local" ? fit::Layout::kHeadLocal
                                                  : fit::Layout::kFull;
  options.strip_rope = !flags.keys_as_cached;
  options.folder.shard.token_stride = flags.token_stride;
  options.folder.held_out = flags.held_out;
  options.folder.seed = flags.seed;
  options.memory_bytes = flags.memory_bytes;
  options.checkpoint_every = absl::Seconds(flags.checkpoint_seconds);
  options.overwrite = flags.overwrite;
  options.resume = flags.resume;
  options.folder.shard_index = flags.machine - 1;
  options.folder.shard_count = flags.machines;
  options.folder.domain_weights = flags.domain_weights;
  KVB_ASSIGN_OR_RETURN(const auto source, ReadConfig(flags.configs.source));
  KVB_ASSIGN_OR_RETURN(const auto target, ReadConfig(flags.configs.target));
  if (source.has_value() != target.has_value()) {
    return absl::InvalidArgumentError("expected both --source-config and --target-config");
  }
  if (source) options.folder.shard.declared = fit::SpecPair{*source, *target};
  return options;
}

absl::StatusOr<base::Json> Accumulate(const AccumulateFlags& flags, const Output& output,
                                      const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(const fit::AccumulateOptions options, AccumulateOptionsFrom(flags));
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  KVB_ASSIGN_OR_RETURN(auto job,
                       fit::Accumulator::Create(flags.shards, flags.out, options, pool.get()));
  output.Note(PlanLine(*job));
  if (!flags.dry_run) {
    Progress progress("accumulate", output.quiet());
    KVB_RETURN_IF_ERROR(job->Run(stop, [&](const fit::AccumulateProgress& p) {
      progress.Update(absl::StrFormat("accumulate: sweep %d of %d, %.0f %%", p.sweep, p.sweeps,
                                      100.0 * p.rows / p.all_rows));
    }));
  }
  return Document(*job, flags.dry_run ? "" : flags.out);
}

absl::StatusOr<ExitCode> RunFitAccumulate(const AccumulateFlags& flags, const Output& output,
                                          const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(const base::Json document, Accumulate(flags, output, stop));
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool) { return DocumentText(document); }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunFitMerge(const MergeFlags& flags, const Output& output,
                                     const std::stop_token& stop) {
  {
    const Progress progress("merge", output.quiet());
    const std::vector<std::filesystem::path> inputs(flags.inputs.begin(), flags.inputs.end());
    KVB_RETURN_IF_ERROR(fit::MergeMoments(inputs, flags.out, {.overwrite = flags.overwrite}, stop));
  }
  KVB_ASSIGN_OR_RETURN(const fit::MomentsFile merged, fit::ReadMoments(flags.out));
  const fit::MomentsHeader& header = merged.header;
  const base::Json document = {{"schema", "kvbridge.fit-merge/v1"},
                               {"out", flags.out},
                               {"sequences", header.sequences.size()},
                               {"fit_rows", header.rows(Split::kFit)},
                               {"held_out_rows", header.rows(Split::kHeldOut)}};
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool) {
    return RenderFields({{"moments", flags.out},
                         {"sequences", absl::StrCat(header.sequences.size())},
                         {"fit rows", absl::StrCat(header.rows(Split::kFit))},
                         {"held-out rows", absl::StrCat(header.rows(Split::kHeldOut))}});
  }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
