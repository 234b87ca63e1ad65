// Which of several artifacts for one pair held-out text speaks for.
//
// The first run's artifact stands. Each of the others, in order, takes the place of the one that
// stands if its KL is surely less over all sequences and surely more on no text: "surely" is a 95 %
// interval of the difference, sequence by sequence, that does not hold zero. So a larger or less
// plain map is never chosen for a difference that other text might undo.
//
// Thread contract: pure functions.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "core/evidence/bootstrap.h"
#include "core/evidence/run.h"

namespace kvbridge::evidence {

// A challenger against the one that stood when it came.
struct Comparison {
  size_t standing = 0;
  size_t challenger = 0;
  Estimate all;                           // KL of the challenger less the other's, nats
  std::map<std::string, Estimate> texts;  // the same of each text's sequences
  bool wins = false;
};

struct Choice {
  size_t chosen = 0;  // of the runs
  std::vector<Comparison> comparisons;
};

// FAILED_PRECONDITION unless all runs have the same texts, sequences and prefix, and KL of the
// variant `mapped` for each.
absl::StatusOr<Choice> Choose(std::span<const EvidenceRun> runs);

}  // namespace kvbridge::evidence
