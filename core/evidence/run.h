// An evidence run on disk: what was planned, and the scores of each held-out sequence.
//
// A run is a folder. `run.json`, written before the first sequence, is an object of exactly
//   schema          "kvbridge-run/1"
//   artifact        digest of the artifact that mapped
//   prefix_tokens   length of the prefix that the verdict is about
//   texts           {domain: {"sequences": planned, "sha256": of the text file}}
//   not_applicable  {variant: why it can't exist for this pair}, e.g. "raw" where shapes differ
//   protocol        object: all else that reproduces the run (models, versions, seeds), free
// `scores/*.json` hold one SequenceScores each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "core/base/strict_json.h"
#include "core/evidence/sequence_scores.h"

namespace kvbridge::evidence {

struct PlannedText {
  int64_t sequences = 0;
  std::string sha256;
};

struct EvidenceRun {
  std::string digest;  // SHA-256 over the canonical JSON of run.json and of all scores
  std::string artifact;
  int64_t prefix_tokens = 0;
  std::map<std::string, PlannedText> texts;
  std::map<std::string, std::string> not_applicable;
  base::Json protocol = base::Json::object();
  // Ordered by domain, prefix and sequence; each triple once, each domain one of `texts`.
  std::vector<SequenceScores> sequences;
};

// NOT_FOUND without run.json; INVALID_ARGUMENT names the file and field.
absl::StatusOr<EvidenceRun> ReadRun(const std::filesystem::path& dir);

}  // namespace kvbridge::evidence
