#include "server/target_tile.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/status_macros.h"
#include "core/tensor/dtype.h"
#include "kvbridge/v1/transfer.pb.h"
#include "proto/kvbridge/v1/chunk_codec.h"

namespace kvbridge::server {

absl::StatusOr<TargetTile> TargetTile::Create(const model::KvGeometry& geometry,
                                              kv::TokenRange tokens,
                                              const std::vector<std::vector<float>>& scales,
                                              kv::BufferPool& pool) {
  const int64_t plane_bytes =
      tokens.size() * geometry.row() * static_cast<int64_t>(tensor::ByteSize(geometry.dtype));
  KVB_ASSIGN_OR_RETURN(std::shared_ptr<kv::TileBuffer> buffer,
                       pool.Acquire(2 * geometry.layers * plane_bytes));
  kv::KvView view = kv::DenseTileView(buffer->data(), geometry.dtype, geometry.layers,
                                      tokens.size(), geometry.kv_heads, geometry.head_dim);
  for (int32_t layer = 0; layer < geometry.layers; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      const auto component = static_cast<int64_t>(c);
      kv::Plane& plane = view.plane(layer, c);
      plane.base = buffer->data() + (component * geometry.layers + layer) * plane_bytes;
      if (!scales.empty()) plane.scales = scales[2 * layer + component];
    }
  }
  return TargetTile(tokens, std::move(view), std::move(buffer));
}

std::vector<OutgoingMessage> TargetTile::Messages(kv::LayerRange layers) const {
  // As many layers as fit a chunk; of a layer that is larger than one, as many tokens as do.
  const int64_t plane_bytes = TokenBytes() * tokens_.size();
  const auto layer_step =
      static_cast<int32_t>(std::clamp<int64_t>(kMaxChunkBytes / plane_bytes, 1, layers.size()));
  const int64_t token_step =
      layer_step > 1 ? tokens_.size() : std::max<int64_t>(1, kMaxChunkBytes / TokenBytes());
  std::vector<OutgoingMessage> messages;
  for (const kv::Component c : kv::kComponents) {
    for (int32_t layer = layers.begin; layer < layers.end; layer += layer_step) {
      for (int64_t token = 0; token < tokens_.size(); token += token_step) {
        messages.push_back(Chunk(c, {layer, std::min(layer + layer_step, layers.end)},
                                 {token, std::min(token + token_step, tokens_.size())}));
      }
    }
  }
  v1::TransferEvent ready;
  ready.mutable_layers_ready()->set_layer_begin(layers.begin);
  ready.mutable_layers_ready()->set_layer_end(layers.end);
  ready.mutable_layers_ready()->set_token_begin(tokens_.begin);
  ready.mutable_layers_ready()->set_token_end(tokens_.end);
  messages.push_back({wire::Serialize(ready), 0});
  return messages;
}

OutgoingMessage TargetTile::Chunk(kv::Component c, kv::LayerRange layers,
                                  kv::TokenRange tokens) const {
  v1::TransferChunk head;
  head.set_layer_begin(layers.begin);
  head.set_layer_end(layers.end);
  head.set_component(c == kv::Component::kKey ? v1::COMPONENT_KEY : v1::COMPONENT_VALUE);
  head.set_token_begin(tokens_.begin + tokens.begin);
  head.set_token_end(tokens_.begin + tokens.end);
  const std::byte* begin = view_.Row(layers.begin, c, tokens.begin);
  const int64_t bytes = layers.size() * tokens.size() * TokenBytes();
  return {wire::SerializeEventChunk(std::move(head), {begin, static_cast<size_t>(bytes)},
                                    [buffer = buffer_] {}),
          bytes};
}

}  // namespace kvbridge::server
