// From a gate and a run to a verdict.
//
// A rule is a bound on a figure with a 95 % interval over sequences. It holds when the whole
// interval is on the right side, is broken when the whole interval is on the wrong side, and is
// open otherwise: a wide interval, too few sequences, a missing control or an unfinished run prove
// nothing. One broken rule is FAIL; none broken but one open is UNPROVEN; all held is PASS.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/artifact/manifest.h"
#include "core/base/strict_json.h"
#include "core/evidence/gate.h"
#include "core/evidence/run.h"
#include "core/evidence/summary.h"

namespace kvbridge::evidence {

enum class Outcome : uint8_t { kHeld, kOpen, kBroken };
absl::string_view Name(Outcome outcome);  // "held", "open", "broken"

struct Check {
  std::string domain;
  std::string rule;  // as the gate file spells it; "nearer_than.none", "sequences", "identity"
  std::optional<double> bound;
  std::optional<Estimate> measured;
  Outcome outcome = Outcome::kOpen;
  std::string why;  // of an outcome that the numbers alone don't explain
};

struct Judgement {
  artifact::Verdict verdict = artifact::Verdict::kUnproven;
  std::vector<Check> checks;  // by domain, in the order of the gate file's description
};

// `summary` is Summarize(run).
Judgement Judge(const Gate& gate, const EvidenceRun& run, const RunSummary& summary);

base::Json ToJson(const Check& check);

}  // namespace kvbridge::evidence
