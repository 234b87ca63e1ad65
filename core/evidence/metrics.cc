#include "core/evidence/metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvbridge::evidence {
namespace {

double LogSumExp(std::span<const float> logits, double temperature) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp((logit - top) / temperature);
  return top / temperature + std::log(sum);
}

// One query against one head: weights[k] = softmax over the visible keys.
void Softmax(std::span<float> scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (float& score : scores) sum += score = std::exp(score - top);
  for (float& score : scores) score = static_cast<float>(score / sum);
}

float Dot(const float* a, const float* b, int64_t width) {
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

// Output of one query row; `scores` is scratch of [keys].
void Attend(const AttentionShape& shape, const AttentionInput& in, int64_t head, int64_t query,
            std::vector<float>& scores, float* out) {
  const int64_t width = shape.head_dim;
  const int64_t kv_head = head / (shape.query_heads / shape.kv_heads);
  const float* q = in.queries.data() + (head * shape.queries + query) * width;
  const float* keys = in.keys.data() + kv_head * shape.keys * width;
  const float* values = in.values.data() + kv_head * shape.keys * width;
  const int64_t seen = in.causal ? shape.keys - shape.queries + query + 1 : shape.keys;
  const float scale = 1 / std::sqrt(static_cast<float>(width));
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  for (int64_t k = 0; k < seen; ++k) {
    const bool visible = in.key_mask.empty() || in.key_mask[k] != 0;
    scores[k] = visible ? scale * Dot(q, keys + k * width, width) : kHidden;
  }
  Softmax({scores.data(), static_cast<size_t>(seen)});
  std::fill(out, out + width, 0.0f);
  for (int64_t k = 0; k < seen; ++k) {
    for (int64_t i = 0; i < width; ++i) out[i] += scores[k] * values[k * width + i];
  }
}

}  // namespace

double KlDivergence(std::span<const float> reference, std::span<const float> candidate,
                    double temperature) {
  const double reference_sum = LogSumExp(reference, temperature);
  const double candidate_sum = LogSumExp(candidate, temperature);
  double divergence = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p = reference[i] / temperature - reference_sum;
    const double q = candidate[i] / temperature - candidate_sum;
    divergence += std::exp(p) * (p - q);
  }
  return divergence * temperature * temperature;
}

double NegativeLogLikelihood(std::span<const float> logits, int64_t label) {
  return LogSumExp(logits, 1) - logits[label];
}

int64_t Top1(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

std::vector<float> AttentionOutput(const AttentionShape& shape, const AttentionInput& input) {
  std::vector<float> out(shape.query_heads * shape.queries * shape.head_dim);
  std::vector<float> scores(shape.keys);
  for (int64_t head = 0; head < shape.query_heads; ++head) {
    for (int64_t query = 0; query < shape.queries; ++query) {
      Attend(shape, input, head, query, scores,
             out.data() + (head * shape.queries + query) * shape.head_dim);
    }
  }
  return out;
}

double MeanCosine(std::span<const float> a, std::span<const float> b, int64_t width) {
  constexpr double kSmallest = 1e-8;
  const auto rows = static_cast<int64_t>(a.size()) / width;
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    double dot = 0;
    double aa = 0;
    double bb = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      dot += double{a[i]} * b[i];
      aa += double{a[i]} * a[i];
      bb += double{b[i]} * b[i];
    }
    sum += dot / (std::max(std::sqrt(aa), kSmallest) * std::max(std::sqrt(bb), kSmallest));
  }
  return sum / static_cast<double>(rows);
}

}  // namespace kvbridge::evidence
