// The source's bytes of a relayed transfer, cut into frames: chunks as they come from the caller,
// or pages of a pool, gathered.
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
#include "server/pooled_cache.h"

namespace kvbridge::server {

// A chunk in memory of its own.
struct RelayFrame {
  v1::TransferChunk head;  // without data
  std::shared_ptr<kv::TileBuffer> data;
};

// Thread contract: one thread at a time.
class RelaySource {
 public:
  using Answer = std::variant<std::vector<RelayFrame>, guard::Refusal>;

  virtual ~RelaySource() = default;

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
