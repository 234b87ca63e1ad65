// Where a transfer's answer goes: pooled memory that gRPC sends chunk by chunk from where it lies,
// or the pages of a registered pool. Workers fill either layer by layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/guard/transfer_spec.h"
#include "core/kv/buffer_pool.h"
#include "core/kv/kv_view.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/cache_chunk.h"
#include "server/pooled_cache.h"

namespace kvbridge::server {

// Fits, with its fields, the default limit of every gRPC library.
inline constexpr size_t kMaxChunkBytes = (size_t{4} << 20) - (size_t{64} << 10);

// One message for the stream and how much of it is cache.
struct OutgoingMessage {
  grpc::ByteBuffer bytes;
  int64_t payload = 0;
};

// Memory for some tokens of the answer.
//
// Thread contract: immutable but for the bytes, which are the worker's until it says that layers
// are done.
class TargetTile {
 public:
  virtual ~TargetTile() = default;

  virtual const kv::KvView& view() const = 0;
  virtual int64_t view_begin() const = 0;  // token of view() that is the tile's first
  // What has to travel of `layers`, which are done; nothing where they are in place.
  virtual std::vector<CacheChunk> Chunks(kv::LayerRange layers) const = 0;
  // As engine::TileWork's.
  virtual absl::Status CheckMemory() const { return absl::OkStatus(); }

  // What tells the caller that `layers` are done: their chunks, then LayersReady. They hold the
  // memory until gRPC has sent them.
  std::vector<OutgoingMessage> Messages(kv::LayerRange layers) const;

 protected:
  explicit TargetTile(kv::TokenRange tokens) : tokens_(tokens) {}
  kv::TokenRange tokens() const { return tokens_; }  // of the selection

 private:
  const kv::TokenRange tokens_;
};

// Thread contract: every method may be called from any thread.
class TargetPlane {
 public:
  virtual ~TargetPlane() = default;

  // RESOURCE_EXHAUSTED from the buffer pool.
  virtual absl::StatusOr<std::shared_ptr<const TargetTile>> Open(kv::TokenRange tokens) = 0;
};

// `scales` is empty or [layers * 2] as kv::KvView::planes.
std::shared_ptr<TargetPlane> InlineTarget(const guard::TransferSpec& spec,
                                          std::vector<std::vector<float>> scales,
                                          std::shared_ptr<kv::BufferPool> pool);

// Zeroes the slots past token `covered` of its last page, before anything is written: attention
// kernels read whole pages, whatever becomes of the transfer.
std::shared_ptr<TargetPlane> PoolTarget(int64_t covered, std::shared_ptr<const PooledCache> cache);

}  // namespace kvbridge::server
