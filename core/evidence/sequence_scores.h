// What one held-out sequence says of every variant: means over its scored tokens.
//
// A variant is a way to give the target model its prefix:
//   own       its own cache, in one run: what the others are measured against
//   identity  its own cache, cut and fed again: says that the harness is right
//   mapped    the source's cache through the artifact
//   source    the source model itself, reading on alone
//   raw       the source's cache as it is, layers spread over the target's
//   random    through a random map of the same norms
//   none      no prefix
// with ".tailN" where the target read the last N tokens of the prompt itself (plain: one token),
// and
// ".hopsN" where the cache went through N maps.
//
// A logits file is a safetensors file with `labels` [n] I64, `logits.own` and further
// `logits.<variant>` [n, vocabulary] F32, and, optionally, for attention outputs,
// `attention.queries` [layers, query_heads, n, head_dim], `attention.keys.own`,
// `attention.values.own` and the same of further variants [layers, kv_heads, tokens, head_dim], all
// F32 and after RoPE, the queries scaled so that logits are q.k / sqrt(head_dim). Metadata: format
// "kvbridge-logits", schema "1", domain, sequence, prefix_tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "core/base/strict_json.h"
#include "core/base/worker_pool.h"

namespace kvbridge::evidence {

struct VariantScores {
  // None where the vocabularies differ: the source alone, of a pair with padded embeddings.
  std::optional<double> kl;    // KL(own || variant), nats per token
  std::optional<double> top1;  // share of tokens whose likeliest word is own's
  double nll = 0;              // of the text, nats per token

  friend bool operator==(const VariantScores&, const VariantScores&) = default;
};

struct SequenceScores {
  std::string domain;
  int64_t sequence = 0;
  int64_t prefix_tokens = 0;  // given by another cache; the target reads on from there
  int64_t tokens = 0;         // scored
  std::map<std::string, VariantScores> variants;
  // Cosine of attention outputs with own's, by target layer; empty where it was not measured.
  std::map<std::string, std::vector<double>> layer_cosine;

  friend bool operator==(const SequenceScores&, const SequenceScores&) = default;
};

// INVALID_ARGUMENT names the tensor, what was expected and what came: a shape, a label outside the
// vocabulary, a logit that is not finite. `pool` shares the work by tokens.
absl::StatusOr<SequenceScores> ScoreLogits(const std::filesystem::path& file,
                                           base::WorkerPool* pool);

// The file that stays: schema "kvbridge-scores/1". `path` names it in errors.
base::Json ToJson(const SequenceScores& scores);
absl::StatusOr<SequenceScores> SequenceScoresFromJson(const base::Json& json,
                                                      absl::string_view path);

}  // namespace kvbridge::evidence
