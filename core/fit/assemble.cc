#include "core/fit/assemble.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/fit/round.h"
#include "core/tensor/convert.h"

namespace kvbridge::fit {
namespace {

using tensor::DType;

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Residuals and variances, summed by head and over the layer.
class Fitness {
 public:
  void Add(const System& system, const std::vector<double>& rss, int32_t head_dim) {
    for (size_t begin = 0; begin < rss.size(); begin += head_dim) {
      const auto sum = [&](const std::vector<double>& values) {
        return std::accumulate(values.begin() + begin, values.begin() + begin + head_dim, 0.0);
      };
      heads_.push_back(RSquared(sum(rss), sum(system.target_ss)));
    }
    rss_ += Sum(rss);
    variance_ += Sum(system.target_ss);
  }
  double r2() const { return RSquared(rss_, variance_); }
  const std::vector<double>& heads() const { return heads_; }

 private:
  double rss_ = 0;
  double variance_ = 0;
  std::vector<double> heads_;
};

// Sums over units, which become shares of the variance.
struct RoundingSums {
  double exact = 0;
  double plain = 0;
  double feedback = 0;
  double variance = 0;
};

// Rounds `ridge` both ways and leaves both in `plain` and `feedback`, biases included.
void RoundBothWays(const System& fitted, const System& judged, const Ridge& ridge, Ridge& plain,
                   Ridge& feedback, RoundingSums& sums) {
  plain.weight = RoundPlain(ridge.weight);
  feedback.weight = RoundWithFeedback(ridge);
  for (Ridge* rounded : {&plain, &feedback}) {
    rounded->bias = BiasOf(fitted, rounded->weight);
    for (double& value : rounded->bias) value = tensor::Bf16ToF32(tensor::F32ToBf16(value));
  }
  const auto rss = [&](const Ridge& r) { return Sum(ResidualSums(judged, r.weight, r.bias)); };
  sums.exact += rss(ridge);
  sums.plain += rss(plain);
  sums.feedback += rss(feedback);
  sums.variance += Sum(judged.target_ss);
}

RoundingCost CostOf(const RoundingSums& sums) {
  const double variance = sums.variance > 0 ? sums.variance : 1;
  return {.plain = (sums.plain - sums.exact) / variance,
          .feedback = (sums.feedback - sums.exact) / variance,
          .feedback_used = sums.feedback < sums.plain};
}

// The worst over units.
void NoteAccuracy(const System& system, const Ridge& ridge, SolvedLayer& layer) {
  const Accuracy accuracy = AccuracyOf(system, ridge);
  layer.accuracy.condition = std::max(layer.accuracy.condition, accuracy.condition);
  layer.accuracy.residual = std::max(layer.accuracy.residual, accuracy.residual);
  layer.escalations = std::max(layer.escalations, ridge.escalations);
}

// [p, heads * dim] -> [heads, p, dim], at the unit's place.
void Place(const Unit& unit, const Ridge& ridge, int32_t head_dim, DType dtype,
           SolvedLayer& layer) {
  const int64_t p = ridge.weight.rows;
  const int64_t first = std::max(unit.head, 0);
  const auto row_bytes = static_cast<int64_t>(head_dim * tensor::ByteSize(dtype));
  std::vector<float> row(static_cast<size_t>(head_dim));
  const auto put = [&](const double* values, std::byte* to) {
    std::copy(values, values + head_dim, row.begin());
    tensor::EncodeRow(dtype, row.data(), 1.0f, to, row.size());
  };
  for (int64_t h = 0; h < ridge.weight.cols / head_dim; ++h) {
    for (int64_t i = 0; i < p; ++i) {
      put(ridge.weight.row(i) + h * head_dim,
          layer.weight.data() + ((first + h) * p + i) * row_bytes);
    }
    put(ridge.bias.data() + h * head_dim, layer.bias.data() + (first + h) * row_bytes);
  }
}

// The mapper's storage: one buffer per tensor.
using Buffers = std::vector<std::vector<std::byte>>;

mapper::LayerMap TakeLayer(SolvedLayer& solved, const Moments& moments, DType dtype,
                           Buffers& buffers) {
  const model::KvGeometry& target = moments.target.geometry;
  const int32_t layers = moments.source.geometry.layers;
  mapper::LayerMap map{.support = solved.point.support};
  for (int32_t source : solved.point.sources) {
    if (source < layers) {
      map.sources.push_back(source);
    } else {
      map.cross_sources.push_back(source - layers);
    }
  }
  const auto take = [&](std::vector<std::byte>& bytes, std::vector<int64_t> shape) {
    buffers.push_back(std::move(bytes));
    return mapper::TensorRef{.dtype = dtype, .shape = std::move(shape), .data = buffers.back()};
  };
  const int64_t features = solved.point.parameters / target.row() - 1;
  map.weight = take(solved.weight, {target.kv_heads, features, target.head_dim});
  map.bias = take(solved.bias, {target.kv_heads, target.head_dim});
  return map;
}

}  // namespace

absl::StatusOr<SolvedLayer> SolveLayer(const std::vector<Unit>& units,
                                       const model::KvGeometry& target, CurvePoint point,
                                       const FinalOptions& options) {
  const bool held_out = units.front().group->held_out.rows > 0;
  const bool bf16 = options.dtype == DType::kBf16;
  SolvedLayer layer;
  Fitness in_sample, unseen;
  RoundingSums rounding;
  std::vector<Ridge> plain(units.size()), feedback(units.size());
  for (size_t u = 0; u < units.size(); ++u) {
    const auto gather = [&](RowSet rows) { return Gather(units[u], point.sources, rows); };
    System fitted = gather(RowSet::kFit);
    const System judged = held_out ? gather(RowSet::kHeldOut) : fitted;
    KVB_ASSIGN_OR_RETURN(Ridge ridge, SolveRidge(fitted, point.lambda));
    in_sample.Add(fitted, FittedResidualSums(fitted, ridge), target.head_dim);
    if (held_out) {
      unseen.Add(judged, ResidualSums(judged, ridge.weight, ridge.bias), target.head_dim);
    }
    if (held_out && options.refit) {
      fitted = gather(RowSet::kBoth);
      KVB_ASSIGN_OR_RETURN(ridge, SolveRidge(fitted, point.lambda));
    }
    NoteAccuracy(fitted, ridge, layer);
    if (bf16) {
      RoundBothWays(fitted, judged, ridge, plain[u], feedback[u], rounding);
    } else {
      plain[u] = std::move(ridge);
    }
  }
  if (bf16) layer.rounding = CostOf(rounding);
  const bool use_feedback = bf16 && layer.rounding->feedback_used;
  const auto width = static_cast<int64_t>(tensor::ByteSize(options.dtype));
  layer.bias.resize(static_cast<size_t>(target.row() * width));
  layer.weight.resize(static_cast<size_t>((point.parameters - target.row()) * width));
  for (size_t u = 0; u < units.size(); ++u) {
    Place(units[u], use_feedback ? feedback[u] : plain[u], target.head_dim, options.dtype, layer);
  }
  layer.head_in_sample = in_sample.heads();
  layer.head_held_out = unseen.heads();
  point.judged.in_sample = in_sample.r2();
  if (held_out) point.judged.held_out = unseen.r2();
  layer.point = std::move(point);
  return layer;
}

mapper::Mapper AssembleMapper(const Moments& moments, std::vector<SolvedLayer>& keys,
                              std::vector<SolvedLayer>& values, mapper::KeyNorm key_norm,
                              DType dtype) {
  auto buffers = std::make_shared<Buffers>();
  mapper::Mapper out;
  out.source = moments.source;
  out.target = moments.target;
  out.strip_rope = moments.strip_rope;
  out.key_norm = std::move(key_norm);
  for (SolvedLayer& layer : keys) {
    out.keys.push_back(TakeLayer(layer, moments, dtype, *buffers));
  }
  for (SolvedLayer& layer : values) {
    out.values.push_back(TakeLayer(layer, moments, dtype, *buffers));
  }
  out.storage = std::move(buffers);
  return out;
}

}  // namespace kvbridge::fit
