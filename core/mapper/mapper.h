// A fitted map from one model's cache to another's: an immutable value. Tensors are borrowed from
// the artifact they were read from, which `storage` keeps alive.
//
//   k_hat_l(t) = a_t R_t(t) renorm_l( f_K,l(t) ),   v_hat_l(t) = f_V,l(t)
//   f(t) = X(t) W + b + relu( ... relu( Z(t) D_0 + c_0 ) ... D_n + c_n ) U
//
// X holds, for the layers that target layer l lists, in the order listed, the source's un-rotated
// keys (or its values): all heads (full-head, arXiv 2608.03893) or only head a(h) (head-local,
// arXiv 2609.00891). A map may also read the other component: source values into target keys and
// back, which helps at equal bytes (docs/method.md). The network that may stand beside the linear
// part, or alone, reads Z: all heads of the same layers, whatever the linear part reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "core/kv/kv_view.h"
#include "core/model/model_spec.h"
#include "core/tensor/dtype.h"

namespace kvbridge::mapper {

// A row-major tensor somebody else owns. dtype is kBf16 or kF32.
struct TensorRef {
  tensor::DType dtype = tensor::DType::kBf16;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// What the linear part of a target head reads.
enum class Support : uint8_t {
  kFull,       // all source heads
  kHeadLocal,  // one
  kMlp,        // nothing: there is only the network
};
absl::string_view Name(Support support);

// K or V of one source layer.
struct SourcePlane {
  int32_t layer = 0;
  kv::Component component = kv::Component::kKey;
  friend bool operator==(const SourcePlane&, const SourcePlane&) = default;
};

// relu(x weight + bias), for x of the layer before; the first one's x is Z above.
struct HiddenLayer {
  TensorRef weight;  // [inputs, width]
  TensorRef bias;    // [width]

  int64_t width() const { return bias.shape.empty() ? 0 : bias.shape[0]; }
};
inline constexpr int64_t kMaxHiddenLayers = 8;
inline constexpr int64_t kMaxHiddenWidth = 1 << 16;

// K or V of one target layer.
struct LayerMap {
  Support support = Support::kFull;
  std::vector<int32_t> sources;        // source layers read for the same component
  std::vector<int32_t> cross_sources;  // source layers read for the other component
  // Head-local only: source head read by each target head; empty = identity.
  std::vector<int32_t> head_source;
  // [target_heads, features, target_head_dim]; features are plane-major (planes()), then source
  // head, then source dim.
  TensorRef weight;
  TensorRef bias;  // [target_heads, target_head_dim]
  // The network; empty = linear. Its inputs are ordered as the features of full support.
  std::vector<HiddenLayer> hidden;
  TensorRef out;  // [target_heads, last width, target_head_dim]; without shape where linear

  // Of the linear part, for each target head.
  int64_t features(const model::KvGeometry& source) const {
    switch (support) {
      case Support::kFull:
        return inputs(source);
      case Support::kHeadLocal:
        return plane_count() * source.head_dim;
      case Support::kMlp:
        break;
    }
    return 0;
  }
  // Of the network.
  int64_t inputs(const model::KvGeometry& source) const { return plane_count() * source.row(); }
  int64_t plane_count() const {
    return static_cast<int64_t>(sources.size() + cross_sources.size());
  }
  // What a map of component `own` reads, in feature order: sources, then cross_sources.
  std::vector<SourcePlane> planes(kv::Component own) const;
};

// "full", "head_local + 64", "mlp 1024, 1024": the linear part and the widths of the network.
std::string Describe(const LayerMap& map);

// A regression's prediction is shorter than the truth; with k_norm the right length is known.
struct KeyNorm {
  enum class Kind : uint8_t {
    kNone,
    kKNorm,  // un-rotated key k := k / RMS(k / gamma), gamma = the target's k_norm weight
    kScale,  // key and value of each head multiplied by a fitted factor
  };
  Kind kind = Kind::kNone;
  double eps = 1e-6;                            // kKNorm: inside the square root
  std::vector<std::vector<float>> gamma;        // kKNorm: [target_layers][head_dim]
  std::vector<std::vector<float>> key_scale;    // kScale: [target_layers][target_heads]
  std::vector<std::vector<float>> value_scale;  // kScale: [target_layers][target_heads]
};

struct Mapper {
  std::string digest;  // lower-case hex SHA-256 of the canonical manifest it came from
  model::ModelSpec source;
  model::ModelSpec target;
  bool strip_rope = true;        // false: fitted on keys as they are cached ("position space")
  std::vector<LayerMap> keys;    // [target_layers]
  std::vector<LayerMap> values;  // [target_layers]
  KeyNorm key_norm;
  std::shared_ptr<const void> storage;  // what the TensorRefs point into

  const LayerMap& layer(int32_t target_layer, kv::Component c) const {
    return (c == kv::Component::kKey ? keys : values)[target_layer];
  }
  int64_t parameters() const;
  // 2 * multiply-adds for one token.
  double flops_per_token() const;
};

// Every list, shape and dimension agrees with both geometries; each message names the field, what
// was expected and what came. Values are not read.
absl::Status Validate(const Mapper& mapper);

}  // namespace kvbridge::mapper
