// The bytes of a relayed transfer, cut into frames: chunks as they come from the caller, pages of a
// pool, gathered, or what the map makes of either (relay_map.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/guard/reason.h"
#include "core/guard/transfer_spec.h"
#include "core/kv/buffer_pool.h"
#include "kvbridge/v1/transfer.pb.h"
#include "proto/kvbridge/v1/chunk_codec.h"
#include "server/cache_chunk.h"
#include "server/pooled_cache.h"

namespace kvbridge::server {

// Thread contract: one thread at a time.
class RelaySource {
 public:
  using Answer = std::variant<std::vector<CacheChunk>, guard::Refusal>;

  virtual ~RelaySource() = default;

  // Before Next(): the tokens of the peer's tiles, of which it has few open at a time.
  virtual void SetPeerTile(int64_t) {}
  // A message of the caller: the frames that it holds, verified, or why it cannot be right.
  virtual Answer Take(const wire::ReceivedChunk& chunk) = 0;
  virtual Answer Take(const v1::ReadyUpTo& ready) = 0;
  // The next frame that needs no message; none: wait for one.
  virtual Answer Next() = 0;
  // Whether everything has left; `input_ended`: no more messages will come.
  virtual bool Complete(bool input_ended) const = 0;
};

// Chunks are copied: gRPC's memory is let go at once.
std::unique_ptr<RelaySource> ChunkRelay(std::shared_ptr<kv::BufferPool> buffers);

// All of the selection's tokens from `first_token` on, tile by tile.
std::unique_ptr<RelaySource> PoolRelay(const guard::TransferSpec& spec, bool streamed,
                                       std::shared_ptr<const PooledCache> cache,
                                       std::shared_ptr<kv::BufferPool> buffers);

}  // namespace kvbridge::server
