// kvbridge bench: how long handoffs take here and now, and whether that is longer than it was.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cli/bench_report.h"
#include "client/cli/commands.h"
#include "client/cli/flag_file.h"
#include "client/cli/handoff.h"
#include "client/cli/progress.h"
#include "core/base/status_macros.h"
#include "core/tensor/convert.h"

namespace kvbridge::cli {
namespace {

// A cache of `tokens` tokens, of numbers from -1 to 1 that are the same each time.
artifact::CacheFile MadeUpCache(const model::ModelSpec& spec, int64_t tokens) {
  std::span<std::byte> bytes;
  artifact::CacheFile cache = NewCache(spec, tokens, &bytes);
  std::minstd_rand random;
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(4096);
  std::generate(values.begin(), values.end(), [&] { return uniform(random); });
  std::vector<std::byte> block(values.size() * tensor::ByteSize(spec.geometry.dtype));
  tensor::EncodeRow(spec.geometry.dtype, values.data(), 1, block.data(), values.size());
  for (size_t at = 0; at < bytes.size(); at += block.size()) {
    std::memcpy(&bytes[at], block.data(), std::min(block.size(), bytes.size() - at));
  }
  return cache;
}

// One size. A first transfer that falls back is the last: the others would, too.
absl::StatusOr<std::vector<TransferReport>> Measure(const BenchFlags& flags, int64_t tokens,
                                                    Handoff& handoff, Progress& progress,
                                                    const std::stop_token& stop) {
  const artifact::CacheFile source = MadeUpCache(handoff.source(), tokens);
  const artifact::CacheFile answer = AnswerFor(handoff.target(), source);
  std::vector<TransferReport> reports;
  for (int32_t i = -flags.warm_up; i < flags.repetitions; ++i) {
    progress.Update(
        absl::StrCat(tokens, " tokens, ", std::max(i + 1, 0), " of ", flags.repetitions));
    KVB_ASSIGN_OR_RETURN(TransferReport report, handoff.Run({}, source, answer, stop));
    const bool ends = i == -flags.warm_up && !report.applied();
    if (i >= 0 || ends) reports.push_back(std::move(report));
    if (ends) break;
  }
  return reports;
}

absl::StatusOr<std::optional<BenchReport>> ReadBaseline(const BenchFlags& flags) {
  if (flags.baseline.empty()) return std::nullopt;
  KVB_ASSIGN_OR_RETURN(const std::string text, ReadFlagFile("--baseline", flags.baseline));
  KVB_ASSIGN_OR_RETURN(BenchReport report,
                       ParseBenchReport(text, absl::StrCat("--baseline: ", flags.baseline)));
  return report;
}

}  // namespace

absl::StatusOr<ExitCode> RunBench(const BenchFlags& flags, const Output& output,
                                  const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(const std::optional<BenchReport> baseline, ReadBaseline(flags));
  const int64_t most_tokens = *std::max_element(flags.tokens.begin(), flags.tokens.end());
  KVB_ASSIGN_OR_RETURN(const auto handoff, OpenHandoff(flags.by, most_tokens, output));
  if (handoff->source().geometry.layers == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("--route: expected a route with an artifact, got ", flags.by.route));
  }
  BenchReport report{.subject = flags.by.route.empty() ? flags.by.artifact : flags.by.route,
                     .backend = handoff->backend()};
  ExitCode code = ExitCode::kOk;
  {
    Progress progress("starting", output.quiet());
    for (const int64_t tokens : flags.tokens) {
      KVB_ASSIGN_OR_RETURN(const std::vector<TransferReport> reports,
                           Measure(flags, tokens, *handoff, progress, stop));
      const BenchRow& row = report.rows.emplace_back(Summarize(tokens, reports));
      const TransferReport& last = reports.back();
      if (row.applied == 0) {
        output.Note(absl::StrCat(tokens, " tokens: ", last.reason, ": ", last.detail));
        code = ExitCodeForFallback(last.outcome, last.reason, last.refused,
                                   /*fail_on_fallback=*/true);
        continue;
      }
      report.artifact_digest = last.artifact_digest;
      report.plane = last.plane;
    }
  }
  std::optional<BenchComparison> comparison;
  if (baseline && code == ExitCode::kOk) {
    KVB_ASSIGN_OR_RETURN(comparison,
                         Compare(report, *baseline, flags.baseline, flags.fail_if_slower));
    for (const std::string& difference : comparison->differences) {
      output.Note(absl::StrCat("the baseline is of another ", difference));
    }
  }
  KVB_RETURN_IF_ERROR(output.Emit(ToJson(report, comparison),
                                  [&](bool color) { return ToText(report, comparison, color); }));
  return comparison && comparison->slower() ? ExitCode::kGateFailed : code;
}

}  // namespace kvbridge::cli
