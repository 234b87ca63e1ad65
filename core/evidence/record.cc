#include "core/evidence/record.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "core/base/status_macros.h"

namespace kvbridge::evidence {
namespace {

using artifact::Evidence;
using base::Json;

// Digest of the artifact that was measured, in details.
constexpr char kMeasured[] = "measured_artifact";

// The sequences that the verdict is about, whatever their domain.
std::vector<const SequenceScores*> Judged(const Gate& gate, const EvidenceRun& run) {
  std::vector<const SequenceScores*> out;
  for (const SequenceScores& sequence : run.sequences) {
    if (sequence.prefix_tokens != run.prefix_tokens) continue;
    if (gate.Find(sequence.domain) != nullptr) out.push_back(&sequence);
  }
  return out;
}

std::optional<double> Value(const std::optional<Estimate>& estimate) {
  if (!estimate) return std::nullopt;
  return estimate->value;
}

std::vector<artifact::TailPoint> Tails(const DomainSummary& pooled) {
  std::vector<artifact::TailPoint> tails;
  for (const auto& [name, variant] : pooled.variants) {
    const int64_t tail = NativeTail(name);
    if (name != WithTail("mapped", tail) || !variant.kl) continue;
    tails.push_back({tail, variant.kl->mean.value, Value(variant.gap)});
  }
  std::sort(tails.begin(), tails.end(),
            [](const auto& a, const auto& b) { return a.native_tail < b.native_tail; });
  return tails;
}

// KL, gap and context of what was mapped, by prefix length.
Json Lengths(const RunSummary& summary) {
  Json out = Json::object();
  for (const auto& [domain, lengths] : summary.lengths) {
    for (const auto& [prefix, figures] : lengths) {
      const Json all = ToJson(figures);
      Json point = {{"prefix_tokens", prefix}, {"sequences", figures.sequences}};
      for (const auto& [name, variant] : all["variants"].items()) {
        if (absl::StartsWith(name, "mapped")) point["variants"][name] = variant;
      }
      out[domain].push_back(std::move(point));
    }
  }
  return out;
}

Json Details(const Gate& gate, const EvidenceRun& run, const RunSummary& summary,
             const DomainSummary& pooled, const Judgement& judgement) {
  Json domains = Json::object();
  for (const auto& [name, domain] : summary.domains) {
    domains[name] = ToJson(domain);
    domains[name]["text_sha256"] = run.texts.at(name).sha256;
    domains[name]["judged"] = gate.Find(name) != nullptr;
  }
  Json checks = Json::array();
  for (const Check& check : judgement.checks) checks.push_back(ToJson(check));
  return {{"schema", "kvbridge-evidence/1"},
          {"run_sha256", run.digest},
          {"gate_sha256", gate.digest},
          {"gate", gate.name},
          {"native_tail", gate.native_tail},
          {"prefix_tokens", run.prefix_tokens},
          {kMeasured, run.artifact},
          {"protocol", run.protocol},
          {"not_applicable", run.not_applicable},
          {"domains", std::move(domains)},
          {"all", ToJson(pooled)},
          {"lengths", Lengths(summary)},
          {"checks", std::move(checks)}};
}

std::string ProvenanceText(const Gate& gate, const EvidenceRun& run,
                           const std::vector<const SequenceScores*>& judged) {
  std::vector<std::string> domains;
  for (const auto& [name, text] : run.texts) {
    if (gate.Find(name) != nullptr) domains.push_back(name);
  }
  return absl::StrCat("run ", run.digest.substr(0, 12), " (", judged.size(), " sequences of ",
                      absl::StrJoin(domains, ", "), "; ", run.prefix_tokens,
                      " tokens of prefix, native tail ", gate.native_tail, ") judged by gate ",
                      gate.digest.substr(0, 12), " (", gate.name, ")");
}

}  // namespace

Evidence MakeEvidence(const Gate& gate, const EvidenceRun& run, const RunSummary& summary,
                      const Judgement& judgement) {
  const std::vector<const SequenceScores*> judged = Judged(gate, run);
  const DomainSummary pooled = judged.empty() ? DomainSummary() : SummarizeSequences(judged);
  Evidence out{.verdict = judgement.verdict, .provenance = ProvenanceText(gate, run, judged)};
  const auto mapped = pooled.variants.find(WithTail("mapped", gate.native_tail));
  if (mapped != pooled.variants.end() && mapped->second.kl) {
    out.kl_nats = mapped->second.kl->mean.value;
    out.gap_recovered = Value(mapped->second.gap);
  }
  out.tails = Tails(pooled);
  out.details = Details(gate, run, summary, pooled, judgement);
  return out;
}

absl::Status CheckMeasured(const artifact::Artifact& artifact, const EvidenceRun& run) {
  if (artifact.format != artifact::Format::kNative) {
    return absl::FailedPreconditionError(
        absl::StrCat("artifact: expected a native one, got format ",
                     std::string(artifact::Name(artifact.format)),
                     ", which holds no evidence; kvbridge artifact convert makes it native"));
  }
  if (artifact.mapper->digest == run.artifact) return absl::OkStatus();
  const auto& evidence = artifact.provenance.evidence;
  if (evidence && evidence->details.value(kMeasured, Json()) == run.artifact) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("run: expected measurements of artifact ",
                                                    artifact.mapper->digest.substr(0, 12),
                                                    ", got of ", run.artifact.substr(0, 12)));
}

absl::StatusOr<std::string> RecordEvidence(const std::filesystem::path& dir, const EvidenceRun& run,
                                           const Evidence& evidence, const RecordOptions& options) {
  KVB_ASSIGN_OR_RETURN(const artifact::Artifact artifact,
                       artifact::LoadArtifact(dir, {.pool = options.pool, .check_finite = false}));
  KVB_RETURN_IF_ERROR(CheckMeasured(artifact, run));
  artifact::Provenance provenance = artifact.provenance;
  provenance.evidence = evidence;
  const auto before_commit = [&]() -> absl::Status {
    if (options.before_commit) KVB_RETURN_IF_ERROR(options.before_commit());
    return artifact.weights->CheckUnchanged();
  };
  return artifact::SaveArtifact(
      dir, *artifact.mapper, provenance,
      {.pool = options.pool, .overwrite = true, .before_commit = before_commit});
}

}  // namespace kvbridge::evidence
