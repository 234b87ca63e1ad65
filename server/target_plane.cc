#include "server/target_plane.h"

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"
#include "core/tensor/dtype.h"
#include "kvbridge/v1/transfer.pb.h"
#include "proto/kvbridge/v1/chunk_codec.h"

namespace kvbridge::server {
namespace {

OutgoingMessage LayersReady(kv::LayerRange layers, kv::TokenRange tokens) {
  v1::TransferEvent event;
  v1::LayersReady& ready = *event.mutable_layers_ready();
  ready.set_layer_begin(layers.begin);
  ready.set_layer_end(layers.end);
  ready.set_token_begin(tokens.begin);
  ready.set_token_end(tokens.end);
  return {wire::Serialize(event), 0};
}

// Dense [component, layer, token, head, dim], so that neighbouring layers of one component are one
// piece.
class InlineTile final : public TargetTile {
 public:
  InlineTile(const model::KvGeometry& geometry, kv::TokenRange tokens,
             const std::vector<std::vector<float>>& scales, std::shared_ptr<kv::TileBuffer> buffer)
      : TargetTile(tokens),
        view_(kv::DenseTileView(buffer->data(), geometry.dtype, geometry.layers, tokens.size(),
                                geometry.kv_heads, geometry.head_dim)),
        buffer_(std::move(buffer)) {
    for (int32_t layer = 0; layer < geometry.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        const auto component = static_cast<int64_t>(c);
        kv::Plane& plane = view_.plane(layer, c);
        plane.base =
            buffer_->data() + (component * geometry.layers + layer) * tokens.size() * TokenBytes();
        if (!scales.empty()) plane.scales = scales[2 * layer + component];
      }
    }
  }

  const kv::KvView& view() const override { return view_; }
  int64_t view_begin() const override { return 0; }

  // Keys first: as many layers as fit a chunk; of a layer that is larger than one, as many tokens
  // as do.
  std::vector<CacheChunk> Chunks(kv::LayerRange layers) const override {
    const int64_t all = tokens().size();
    const int64_t plane_bytes = TokenBytes() * all;
    const auto layer_step =
        static_cast<int32_t>(std::clamp<int64_t>(kMaxChunkBytes / plane_bytes, 1, layers.size()));
    const int64_t token_step =
        layer_step > 1 ? all : std::max<int64_t>(1, kMaxChunkBytes / TokenBytes());
    std::vector<CacheChunk> chunks;
    for (const kv::Component c : kv::kComponents) {
      for (int32_t layer = layers.begin; layer < layers.end; layer += layer_step) {
        for (int64_t token = 0; token < all; token += token_step) {
          chunks.push_back(Chunk(c, {layer, std::min(layer + layer_step, layers.end)},
                                 {token, std::min(token + token_step, all)}));
        }
      }
    }
    return chunks;
  }

 private:
  // `range`: tokens of the tile.
  CacheChunk Chunk(kv::Component c, kv::LayerRange layers, kv::TokenRange range) const {
    v1::TransferChunk head;
    head.set_layer_begin(layers.begin);
    head.set_layer_end(layers.end);
    head.set_component(c == kv::Component::kKey ? v1::COMPONENT_KEY : v1::COMPONENT_VALUE);
    head.set_token_begin(tokens().begin + range.begin);
    head.set_token_end(tokens().begin + range.end);
    const int64_t bytes = layers.size() * range.size() * TokenBytes();
    return {std::move(head),
            {view_.Row(layers.begin, c, range.begin), static_cast<size_t>(bytes)},
            buffer_};
  }
  int64_t TokenBytes() const { return view_.planes[0].token_stride; }

  kv::KvView view_;
  const std::shared_ptr<kv::TileBuffer> buffer_;
};

class Inline final : public TargetPlane {
 public:
  Inline(const model::KvGeometry& geometry, std::vector<std::vector<float>> scales,
         std::shared_ptr<kv::BufferPool> pool)
      : geometry_(geometry), scales_(std::move(scales)), pool_(std::move(pool)) {}

  absl::StatusOr<std::shared_ptr<const TargetTile>> Open(kv::TokenRange tokens) override {
    KVB_ASSIGN_OR_RETURN(std::shared_ptr<kv::TileBuffer> buffer,
                         pool_->Acquire(tokens.size() * geometry_.token_bytes()));
    return std::make_shared<InlineTile>(geometry_, tokens, scales_, std::move(buffer));
  }

 private:
  const model::KvGeometry geometry_;
  const std::vector<std::vector<float>> scales_;
  const std::shared_ptr<kv::BufferPool> pool_;
};

class PoolTile final : public TargetTile {
 public:
  PoolTile(kv::TokenRange tokens, std::shared_ptr<const PooledCache> cache)
      : TargetTile(tokens), cache_(std::move(cache)) {}

  const kv::KvView& view() const override { return cache_->view(); }
  int64_t view_begin() const override { return tokens().begin; }
  std::vector<CacheChunk> Chunks(kv::LayerRange) const override { return {}; }
  absl::Status CheckMemory() const override { return cache_->CheckWhole(); }

 private:
  const std::shared_ptr<const PooledCache> cache_;
};

class Pool final : public TargetPlane {
 public:
  explicit Pool(std::shared_ptr<const PooledCache> cache) : cache_(std::move(cache)) {}

  absl::StatusOr<std::shared_ptr<const TargetTile>> Open(kv::TokenRange tokens) override {
    return std::make_shared<PoolTile>(tokens, cache_);
  }

 private:
  const std::shared_ptr<const PooledCache> cache_;
};

}  // namespace

std::vector<OutgoingMessage> TargetTile::Messages(kv::LayerRange layers) const {
  std::vector<OutgoingMessage> messages;
  for (CacheChunk& chunk : Chunks(layers)) {
    messages.push_back({wire::SerializeEventChunk(std::move(chunk.head), chunk.payload,
                                                  [owner = std::move(chunk.owner)] {}),
                        static_cast<int64_t>(chunk.payload.size())});
  }
  messages.push_back(LayersReady(layers, tokens_));
  return messages;
}

std::shared_ptr<TargetPlane> InlineTarget(const guard::TransferSpec& spec,
                                          std::vector<std::vector<float>> scales,
                                          std::shared_ptr<kv::BufferPool> pool) {
  return std::make_shared<Inline>(spec.target.geometry, std::move(scales), std::move(pool));
}

std::shared_ptr<TargetPlane> PoolTarget(int64_t covered, std::shared_ptr<const PooledCache> cache) {
  kv::KvView written = cache->view();
  written.tokens = covered;
  kv::ZeroTail(written);
  return std::make_shared<Pool>(std::move(cache));
}

}  // namespace kvbridge::server
