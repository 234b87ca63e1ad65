// Measures of a candidate against a reference: next-token distributions and attention outputs.
//
// Pure functions of float arrays; sums in double. Thread contract: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvbridge::evidence {

// KL(softmax(reference / T) || softmax(candidate / T)) of one token in nats, times T^2, which keeps
// gradients, and so magnitudes, comparable over T. Both hold one logit per word; NaN where one is.
double KlDivergence(std::span<const float> reference, std::span<const float> candidate,
                    double temperature = 1);

// -log softmax(logits)[label] in nats. 0 <= label < logits.size().
double NegativeLogLikelihood(std::span<const float> logits, int64_t label);

// Index of the largest logit, the first of equals.
int64_t Top1(std::span<const float> logits);

struct AttentionShape {
  int32_t query_heads = 0;  // a multiple of kv_heads: query head q reads kv head q / group
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t queries = 0;  // query tokens; with `causal` at most `keys`
  int64_t keys = 0;     // key tokens
};

struct AttentionInput {
  std::span<const float> queries;     // [query_heads, queries, head_dim], after RoPE
  std::span<const float> keys;        // [kv_heads, keys, head_dim], after RoPE
  std::span<const float> values;      // [kv_heads, keys, head_dim]
  std::span<const uint8_t> key_mask;  // [keys], 0 = hidden; empty = all are seen
  bool causal = false;                // the queries are the last tokens of the keys
};

// softmax(q k^T / sqrt(head_dim)) v, [query_heads, queries, head_dim]. A query that sees no key has
// no output: NaN.
std::vector<float> AttentionOutput(const AttentionShape& shape, const AttentionInput& input);

// Mean over rows of the cosine between them; a norm below 1e-8 counts as 1e-8. a, b: [rows, width].
double MeanCosine(std::span<const float> a, std::span<const float> b, int64_t width);

}  // namespace kvbridge::evidence
