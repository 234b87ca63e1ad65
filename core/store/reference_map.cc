#include "core/store/reference_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/tensor/convert.h"

namespace kvbridge::store {
namespace {

using Kind = mapper::KeyNorm::Kind;

double Element(const mapper::TensorRef& tensor, int64_t index) {
  if (tensor.dtype == tensor::DType::kF32) {
    float value;
    std::memcpy(&value, tensor.data.data() + index * int64_t{sizeof(value)}, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, tensor.data.data() + index * int64_t{sizeof(bits)}, sizeof(bits));
  return tensor::Bf16ToF32(bits);
}

// Turns each pair by sign * position * inv_freq and multiplies it by `factor`.
void Rotate(const model::RopeParams& params, double position, double sign, double factor,
            double* head) {
  const int32_t half = params.rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const bool split = params.pairing == model::Pairing::kHalf;
    double& x = head[split ? i : 2 * i];
    double& y = head[split ? i + half : 2 * i + 1];
    const double angle = position * params.inv_freq[i];
    const double cosine = factor * std::cos(angle);
    const double sine = factor * sign * std::sin(angle);
    const double turned = x * cosine - y * sine;
    y = x * sine + y * cosine;
    x = turned;
  }
}

// Numbers, and a bound of what each was summed from: the sum of its terms' magnitudes.
struct Sums {
  std::vector<double> values;
  std::vector<double> magnitudes;
};

// to += x M, where M is the rows from `first` on of a row-major matrix that is as wide as `to`.
void AddProduct(const Sums& x, const mapper::TensorRef& matrix, int64_t first, Sums& to) {
  const auto columns = static_cast<int64_t>(to.values.size());
  for (size_t i = 0; i < x.values.size(); ++i) {
    for (int64_t c = 0; c < columns; ++c) {
      const double weight = Element(matrix, (first + static_cast<int64_t>(i)) * columns + c);
      to.values[c] += x.values[i] * weight;
      to.magnitudes[c] += x.magnitudes[i] * std::abs(weight);
    }
  }
}

Sums Bias(const mapper::TensorRef& bias, int64_t first, int64_t count) {
  Sums sums;
  for (int64_t i = 0; i < count; ++i) {
    sums.values.push_back(Element(bias, first + i));
    sums.magnitudes.push_back(std::abs(sums.values.back()));
  }
  return sums;
}

Sums Exactly(std::vector<double> values) {
  Sums sums{std::move(values), {}};
  for (const double value : sums.values) sums.magnitudes.push_back(std::abs(value));
  return sums;
}

// The last hidden layer of the network.
Sums Activations(const mapper::LayerMap& map, Sums x) {
  for (const mapper::HiddenLayer& layer : map.hidden) {
    Sums next = Bias(layer.bias, 0, layer.width());
    AddProduct(x, layer.weight, 0, next);
    for (double& value : next.values) value = std::max(value, 0.0);
    x = std::move(next);
  }
  return x;
}

// Un-rotated features of the listed layers: all heads (head < 0), or the one that feeds `head`.
std::vector<double> Features(const mapper::Mapper& mapper, const mapper::LayerMap& map,
                             const kv::KvView& source, int64_t token, int64_t position,
                             kv::Component component, int32_t head) {
  std::vector<double> features;
  std::vector<float> row(static_cast<size_t>(source.row()));
  for (const auto& [layer, plane] : map.planes(component)) {
    kv::ReadRows(source, layer, plane, {token, token + 1}, row.data());
    std::vector<double> wide(row.begin(), row.end());
    if (plane == kv::Component::kKey && mapper.strip_rope) {
      const model::RopeParams& params = mapper.source.rope.ForLayer(layer);
      for (int32_t h = 0; h < source.kv_heads; ++h) {
        Rotate(params, static_cast<double>(position), -1, 1 / params.attention_factor,
               wide.data() + h * source.head_dim);
      }
    }
    if (head < 0) {
      features.insert(features.end(), wide.begin(), wide.end());
    } else {
      const int32_t from = map.head_source.empty() ? head : map.head_source[head];
      const auto begin = wide.begin() + int64_t{from} * source.head_dim;
      features.insert(features.end(), begin, begin + source.head_dim);
    }
  }
  return features;
}

// What key renormalisation multiplies the un-rotated head by.
double Renormalisation(const mapper::KeyNorm& norm, int32_t layer, kv::Component component,
                       int32_t head, const std::vector<double>& values) {
  const bool key = component == kv::Component::kKey;
  if (norm.kind == Kind::kScale) {
    return (key ? norm.key_scale : norm.value_scale)[layer][head];
  }
  if (norm.kind == Kind::kNone || !key) return 1;
  double sum = 0;
  int counted = 0;
  for (size_t d = 0; d < values.size(); ++d) {
    const double gamma = norm.gamma[layer][d];
    // A dimension that k_norm multiplies by zero says nothing about the length before it.
    if (std::abs(gamma) < std::numeric_limits<float>::min()) continue;
    sum += values[d] / gamma * (values[d] / gamma);
    ++counted;
  }
  return 1 / std::sqrt(sum / counted + norm.eps);
}

}  // namespace

ReferenceHead MapHead(const mapper::Mapper& mapper, const kv::KvView& source, int64_t token,
                      int64_t position, int32_t layer, kv::Component component, int32_t head) {
  const mapper::LayerMap& map = mapper.layer(layer, component);
  const int64_t dim = mapper.target.geometry.head_dim;
  const auto features = [&](int32_t of) {
    return Exactly(Features(mapper, map, source, token, position, component, of));
  };
  Sums sums = Bias(map.bias, head * dim, dim);
  if (map.support != mapper::Support::kMlp) {
    const Sums x = features(map.support == mapper::Support::kFull ? -1 : head);
    AddProduct(x, map.weight, head * static_cast<int64_t>(x.values.size()), sums);
  }
  if (!map.hidden.empty()) {
    const Sums x = Activations(map, features(-1));
    AddProduct(x, map.out, head * static_cast<int64_t>(x.values.size()), sums);
  }

  ReferenceHead result{.values = std::move(sums.values)};
  double magnitude_squared = 0;
  for (const double magnitude : sums.magnitudes) magnitude_squared += magnitude * magnitude;
  double scale = Renormalisation(mapper.key_norm, layer, component, head, result.values);
  for (double& value : result.values) value *= scale;
  if (component == kv::Component::kKey && mapper.strip_rope) {
    const model::RopeParams& params = mapper.target.rope.ForLayer(layer);
    Rotate(params, static_cast<double>(position), 1, params.attention_factor, result.values.data());
    scale *= params.attention_factor;
  }
  result.magnitude = std::sqrt(magnitude_squared) * std::abs(scale);
  return result;
}

}  // namespace kvbridge::store
