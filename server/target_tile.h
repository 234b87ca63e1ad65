// One tile of an answer on the inline plane: pooled memory that a worker fills layer by layer and
// that gRPC sends from where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "core/kv/buffer_pool.h"
#include "core/kv/kv_view.h"
#include "core/model/model_spec.h"
#include "grpcpp/support/byte_buffer.h"

namespace kvbridge::server {

// Fits, with its fields, the default limit of every gRPC library.
inline constexpr size_t kMaxChunkBytes = (size_t{4} << 20) - (size_t{64} << 10);

// One message for the stream and how much of it is cache.
struct OutgoingMessage {
  grpc::ByteBuffer bytes;
  int64_t payload = 0;
};

// A value; copies share the memory. Dense [component, layer, token, head, dim], so that
// neighbouring layers of one component are one piece.
class TargetTile {
 public:
  // `scales` is empty or [layers * 2] as kv::KvView::planes. RESOURCE_EXHAUSTED from the pool.
  static absl::StatusOr<TargetTile> Create(const model::KvGeometry& geometry, kv::TokenRange tokens,
                                           const std::vector<std::vector<float>>& scales,
                                           kv::BufferPool& pool);

  const kv::KvView& view() const { return view_; }
  const std::shared_ptr<kv::TileBuffer>& buffer() const { return buffer_; }

  // Chunk messages for `layers`, keys first, then LayersReady. They hold the memory until gRPC has
  // sent it.
  std::vector<OutgoingMessage> Messages(kv::LayerRange layers) const;

 private:
  TargetTile(kv::TokenRange tokens, kv::KvView view, std::shared_ptr<kv::TileBuffer> buffer)
      : tokens_(tokens), view_(std::move(view)), buffer_(std::move(buffer)) {}
  OutgoingMessage Chunk(kv::Component c, kv::LayerRange layers, kv::TokenRange tokens) const;
  int64_t TokenBytes() const { return view_.planes[0].token_stride; }

  kv::TokenRange tokens_;  // of the selection
  kv::KvView view_;
  std::shared_ptr<kv::TileBuffer> buffer_;
};

}  // namespace kvbridge::server
