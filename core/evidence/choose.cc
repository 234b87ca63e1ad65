#include "core/evidence/choose.h"

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"

namespace kvbridge::evidence {
namespace {

// KL of the mapped cache of every sequence, in the run's order.
absl::StatusOr<std::vector<double>> MappedKl(const EvidenceRun& run, const EvidenceRun& first) {
  if (run.sequences.size() != first.sequences.size() || run.sequences.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("runs: expected ", first.sequences.size(),
                                                      " sequences, as the first has, and at least "
                                                      "one, got ",
                                                      run.sequences.size()));
  }
  for (const auto& [domain, text] : first.texts) {
    const auto it = run.texts.find(domain);
    if (it != run.texts.end() && it->second.sha256 == text.sha256) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("runs: expected the text ", domain, " of the first in all of them"));
  }
  std::vector<double> kl;
  for (size_t i = 0; i < run.sequences.size(); ++i) {
    const SequenceScores& sequence = run.sequences[i];
    const SequenceScores& other = first.sequences[i];
    const auto mapped = sequence.variants.find("mapped");
    if (sequence.domain != other.domain || sequence.sequence != other.sequence ||
        sequence.prefix_tokens != other.prefix_tokens || mapped == sequence.variants.end() ||
        !mapped->second.kl) {
      return absl::FailedPreconditionError(absl::StrCat(
          "runs: expected KL of the mapped cache for sequence ", other.sequence, " of ",
          other.domain, " after ", other.prefix_tokens, " tokens, as in the first"));
    }
    kl.push_back(*mapped->second.kl);
  }
  return kl;
}

Comparison Compare(const EvidenceRun& run, const std::vector<double>& standing,
                   const std::vector<double>& challenger) {
  std::vector<double> all;
  std::map<std::string, std::vector<double>> by_text;
  for (size_t i = 0; i < standing.size(); ++i) {
    all.push_back(challenger[i] - standing[i]);
    by_text[run.sequences[i].domain].push_back(all.back());
  }
  Comparison out{.all = Bootstrap(static_cast<int64_t>(all.size())).Mean(all)};
  out.wins = out.all.high < 0;
  for (const auto& [domain, differences] : by_text) {
    out.texts[domain] = Bootstrap(static_cast<int64_t>(differences.size())).Mean(differences);
    if (out.texts[domain].low > 0) out.wins = false;
  }
  return out;
}

}  // namespace

absl::StatusOr<Choice> Choose(std::span<const EvidenceRun> runs) {
  if (runs.empty()) return absl::InvalidArgumentError("runs: expected at least one, got none");
  Choice choice;
  KVB_ASSIGN_OR_RETURN(std::vector<double> standing, MappedKl(runs[0], runs[0]));
  for (size_t i = 1; i < runs.size(); ++i) {
    KVB_ASSIGN_OR_RETURN(std::vector<double> challenger, MappedKl(runs[i], runs[0]));
    Comparison& comparison =
        choice.comparisons.emplace_back(Compare(runs[0], standing, challenger));
    comparison.standing = choice.chosen;
    comparison.challenger = i;
    if (!comparison.wins) continue;
    choice.chosen = i;
    standing = std::move(challenger);
  }
  return choice;
}

}  // namespace kvbridge::evidence
