// The figures of a run: aggregates over sequences with bootstrap intervals, by domain.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "core/base/strict_json.h"
#include "core/evidence/bootstrap.h"
#include "core/evidence/run.h"

namespace kvbridge::evidence {

// Of one number per sequence (itself a mean over the sequence's tokens).
struct Spread {
  Estimate mean;
  Estimate p95;
  double p05 = 0;
  double p50 = 0;
  double max = 0;
};

struct VariantSummary {
  std::optional<Spread> kl;      // nats; none where vocabularies differ
  std::optional<Estimate> top1;  // share
  Estimate nll;                  // nats per token; perplexity is its exponential
  // (source - variant) / (source - own) in mean NLL: 0 = no better than the source alone, 1 = own.
  // None unless the source is worse than the target in every draw.
  std::optional<Estimate> gap;
  // (none - variant) / (none - own) with the same native tail: the share of the prefix's worth that
  // survives. None unless the prefix helps in every draw.
  std::optional<Estimate> context;
  // 1 - KL / KL of each control (none, raw, random) with the same native tail: how much nearer to
  // own the variant is.
  std::map<std::string, Estimate> nearer_than;
};

struct LayerSummary {
  int64_t sequences = 0;
  std::vector<double> cosine;  // by target layer
  int32_t worst = 0;           // the layer with the least
  Estimate worst_cosine;
};

// All sequences of a domain with one prefix length.
struct DomainSummary {
  int64_t sequences = 0;
  int64_t tokens = 0;                     // scored, of all sequences
  std::optional<Estimate> source_excess;  // mean NLL of the source alone less own's
  // Those that every sequence has.
  std::map<std::string, VariantSummary> variants;
  std::map<std::string, LayerSummary> layers;  // over the sequences where it was measured
};

struct RunSummary {
  std::map<std::string, DomainSummary> domains;  // at the run's own prefix length
  std::map<std::string, std::map<int64_t, DomainSummary>> lengths;  // domain -> prefix -> all
};

RunSummary Summarize(const EvidenceRun& run);

// The sequences as one, whatever their domains. At least one.
DomainSummary SummarizeSequences(const std::vector<const SequenceScores*>& sequences);

// "mapped" and 1 -> "mapped"; "mapped" and 17 -> "mapped.tail17".
std::string WithTail(absl::string_view variant, int64_t native_tail);
// The native tail and the maps that a variant's name states, 1 where it states none.
int64_t NativeTail(absl::string_view variant);
int64_t Hops(absl::string_view variant);

base::Json ToJson(const Estimate& estimate);  // {"value", "low", "high"}
base::Json ToJson(const DomainSummary& summary);

}  // namespace kvbridge::evidence
