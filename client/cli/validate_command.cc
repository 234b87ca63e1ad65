// kvbridge validate: what a run of measurements says of an artifact, by a gate written before it.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/commands.h"
#include "client/cli/flag_file.h"
#include "client/cli/local_models.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/evidence/choose.h"
#include "core/evidence/random_map.h"
#include "core/evidence/record.h"
#include "core/evidence/sequence_scores.h"

namespace kvbridge::cli {
namespace {

using evidence::Estimate;

std::string Interval(const Estimate& e, int digits) {
  if (e.low == e.high) return absl::StrFormat("%.*f", digits, e.value);
  return absl::StrFormat("%.*f [%.*f, %.*f]", digits, e.value, digits, e.low, digits, e.high);
}

std::string Percent(const std::optional<Estimate>& e) {
  if (!e) return "-";
  return absl::StrFormat("%.1f%% [%.1f, %.1f]", e->value * 100, e->low * 100, e->high * 100);
}

std::string FiguresText(const evidence::RunSummary& summary, bool color) {
  Table table({"TEXT", "VARIANT", "KL, NATS", "P95", "TOP-1", "NLL", "GAP RECOVERED"});
  for (const auto& [domain, figures] : summary.domains) {
    for (const auto& [name, variant] : figures.variants) {
      table.AddRow({domain, name, variant.kl ? Interval(variant.kl->mean, 4) : "-",
                    variant.kl ? absl::StrFormat("%.3f", variant.kl->p95.value) : "-",
                    variant.top1 ? absl::StrFormat("%.3f", variant.top1->value) : "-",
                    absl::StrFormat("%.3f", variant.nll.value), Percent(variant.gap)});
    }
  }
  return table.Render(color);
}

std::string ChecksText(const evidence::Judgement& judgement, bool color) {
  Table table({"TEXT", "RULE", "BOUND", "MEASURED", "OUTCOME", "WHY"});
  for (const evidence::Check& check : judgement.checks) {
    table.AddRow({check.domain, check.rule, check.bound ? absl::StrFormat("%g", *check.bound) : "-",
                  check.measured ? Interval(*check.measured, 3) : "-",
                  std::string(evidence::Name(check.outcome)), check.why.empty() ? "-" : check.why});
  }
  return table.Render(color);
}

absl::StatusOr<evidence::Gate> ReadGate(const std::string& path) {
  constexpr uint64_t kMaxGateBytes = uint64_t{64} << 10;
  KVB_ASSIGN_OR_RETURN(const std::string text, InFile(path, base::ReadFile(path, kMaxGateBytes)));
  return evidence::ParseGate(text, path);
}

// The digest that the artifact has afterwards.
absl::StatusOr<std::string> Record(const ValidateFlags& flags, const evidence::EvidenceRun& run,
                                   const artifact::Evidence& found, const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  if (flags.dry_run) {
    KVB_ASSIGN_OR_RETURN(const artifact::Artifact loaded,
                         LoadLocalArtifact(flags.artifact, {}, true, pool.get()));
    KVB_RETURN_IF_ERROR(evidence::CheckMeasured(loaded, run));
    return loaded.mapper->digest;
  }
  const auto go_on = [&stop]() -> absl::Status {
    return stop.stop_requested() ? absl::CancelledError("validate: interrupted") : absl::OkStatus();
  };
  return evidence::RecordEvidence(flags.artifact, run, found,
                                  {.pool = pool.get(), .before_commit = go_on});
}

}  // namespace

absl::StatusOr<ExitCode> RunValidate(const ValidateFlags& flags, const Output& output,
                                     const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(const evidence::Gate gate, ReadGate(flags.gate));
  KVB_ASSIGN_OR_RETURN(const evidence::EvidenceRun run,
                       InFile(flags.run, evidence::ReadRun(flags.run)));
  const Progress progress(absl::StrCat("judging ", flags.run), output.quiet());
  const evidence::RunSummary summary = evidence::Summarize(run);
  const evidence::Judgement judgement = evidence::Judge(gate, run, summary);
  const artifact::Evidence found = evidence::MakeEvidence(gate, run, summary, judgement);
  KVB_ASSIGN_OR_RETURN(const std::string digest, Record(flags, run, found, stop));
  const std::string verdict(artifact::Name(judgement.verdict));
  base::Json document = {
      {"schema", "kvbridge.validate/v1"},
      {"verdict", verdict},
      {"artifact", flags.artifact},
      {"artifact_digest", digest},
      {"recorded", !flags.dry_run},
      {"kl_nats", found.kl_nats ? base::Json(*found.kl_nats) : nullptr},
      {"gap_recovered", found.gap_recovered ? base::Json(*found.gap_recovered) : nullptr},
      {"evidence", found.details}};
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool color) {
    return absl::StrCat(
        RenderFields({{"verdict", verdict},
                      {"evidence", found.provenance},
                      {"digest", digest + (flags.dry_run ? " (not written)" : "")}}),
        "\n", FiguresText(summary, color), "\n", ChecksText(judgement, color));
  }));
  return judgement.verdict == artifact::Verdict::kPass ? ExitCode::kOk : ExitCode::kGateFailed;
}

absl::StatusOr<ExitCode> RunValidateScore(const ScoreFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  KVB_ASSIGN_OR_RETURN(const evidence::SequenceScores scores,
                       InFile(flags.file, evidence::ScoreLogits(flags.file, pool.get())));
  const base::Json document = evidence::ToJson(scores);
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool color) {
    Table table({"VARIANT", "KL, NATS", "TOP-1", "NLL"});
    for (const auto& [name, variant] : scores.variants) {
      table.AddRow({name, variant.kl ? absl::StrFormat("%.5f", *variant.kl) : "-",
                    variant.top1 ? absl::StrFormat("%.3f", *variant.top1) : "-",
                    absl::StrFormat("%.4f", variant.nll)});
    }
    return table.Render(color);
  }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunValidateChoose(const ChooseFlags& flags, const Output& output) {
  std::vector<evidence::EvidenceRun> runs;
  for (const std::string& path : flags.runs) {
    KVB_ASSIGN_OR_RETURN(runs.emplace_back(), InFile(path, evidence::ReadRun(path)));
  }
  KVB_ASSIGN_OR_RETURN(const evidence::Choice choice, evidence::Choose(runs));
  base::Json comparisons = base::Json::array();
  for (const evidence::Comparison& one : choice.comparisons) {
    base::Json texts = base::Json::object();
    for (const auto& [domain, kl] : one.texts) texts[domain] = evidence::ToJson(kl);
    comparisons.push_back({{"standing", flags.runs[one.standing]},
                           {"challenger", flags.runs[one.challenger]},
                           {"kl_difference", evidence::ToJson(one.all)},
                           {"texts", texts},
                           {"wins", one.wins}});
  }
  const base::Json document = {{"schema", "kvbridge.validate-choose/v1"},
                               {"chosen", flags.runs[choice.chosen]},
                               {"artifact", runs[choice.chosen].artifact},
                               {"comparisons", comparisons}};
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool color) {
    Table table({"CHALLENGER", "AGAINST", "TEXT", "KL LESS THE OTHER'S, NATS", "WINS"});
    for (const evidence::Comparison& one : choice.comparisons) {
      const auto row = [&](const std::string& text, const Estimate& kl, const char* wins) {
        table.AddRow(
            {flags.runs[one.challenger], flags.runs[one.standing], text, Interval(kl, 4), wins});
      };
      row("all", one.all, one.wins ? "yes" : "no");
      for (const auto& [domain, kl] : one.texts) row(domain, kl, "");
    }
    return absl::StrCat(RenderFields({{"chosen", flags.runs[choice.chosen]},
                                      {"artifact", runs[choice.chosen].artifact}}),
                        "\n", table.Render(color));
  }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunValidateRandomMap(const RandomMapFlags& flags, const Output& output,
                                              const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  KVB_ASSIGN_OR_RETURN(const artifact::Artifact loaded,
                       LoadLocalArtifact(flags.artifact, {}, false, pool.get()));
  artifact::Provenance provenance = loaded.provenance;
  provenance.evidence.reset();
  provenance.calibration = {{"random_map", {{"of", loaded.mapper->digest}, {"seed", flags.seed}}}};
  const auto go_on = [&stop]() -> absl::Status {
    return stop.stop_requested() ? absl::CancelledError("random-map: interrupted")
                                 : absl::OkStatus();
  };
  KVB_ASSIGN_OR_RETURN(
      const std::string digest,
      artifact::SaveArtifact(flags.out, evidence::RandomMap(*loaded.mapper, flags.seed), provenance,
                             {.pool = pool.get(), .before_commit = go_on}));
  KVB_RETURN_IF_ERROR(output.Emit(
      {{"schema", "kvbridge.random-map/v1"}, {"out", flags.out}, {"artifact_digest", digest}},
      [&](bool) {
        return RenderFields({{"out", flags.out}, {"digest", digest}});
      }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
