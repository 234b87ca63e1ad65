// What must be known about a model before its cache may be touched: who it is, the shape of its
// cache, and how its keys were rotated. All three travel as explicit numbers; nothing is guessed
// from a name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "core/rope/rope_params.h"
#include "core/tensor/dtype.h"

namespace kvbridge::model {

// Empty string = not stated. Digests are lower-case hex SHA-256.
struct ModelIdentity {
  std::string family;            // "qwen3"
  std::string model_id;          // "Qwen/Qwen3-14B"
  std::string revision;          // weights revision: a commit or digest, never "main"
  std::string tokenizer_sha256;  // source and target must share it
  std::string chat_template_sha256;
  std::string adapter_digest;   // LoRA or the like; present = unsupported in v1
  std::string modality_digest;  // digest of image/audio inputs; empty for text

  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

enum class AttentionKind : uint8_t { kFull, kSliding, kMla, kSsm, kSharedKv, kUnknown };
absl::string_view Name(AttentionKind kind);

// The shape of one model's cache. Lengths are counts, not bytes.
struct KvGeometry {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  tensor::DType dtype = tensor::DType::kBf16;
  std::vector<AttentionKind> attention;  // one per layer; empty = all kFull
  std::vector<int32_t> head_order;       // physical position -> logical head; empty = identity
  int32_t tp_degree = 1;
  int32_t tp_rank = 0;

  // Elements of K (or V) of one token in one layer.
  int64_t row() const { return int64_t{kv_heads} * head_dim; }
  // Bytes of K and V of one token over all layers.
  int64_t token_bytes() const { return 2 * layers * row() * int64_t(tensor::ByteSize(dtype)); }

  friend bool operator==(const KvGeometry&, const KvGeometry&) = default;
};

// One rotation: frequencies, attention factor, rotary dim and pairing.
using rope::Name;
using rope::Pairing;
using rope::RopeParams;

struct RopeSpec {
  RopeParams params;
  std::map<int32_t, RopeParams> layer_overrides;  // models whose layer types rotate differently
  int64_t max_position = 0;                       // exclusive bound on positions; 0 = unbounded

  const RopeParams& ForLayer(int32_t layer) const {
    auto it = layer_overrides.find(layer);
    return it == layer_overrides.end() ? params : it->second;
  }
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

struct ModelSpec {
  ModelIdentity identity;
  KvGeometry geometry;
  RopeSpec rope;

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

}  // namespace kvbridge::model
