// How a transfer's source tokens come in: as chunks in its stream, or written into a pool's pages
// while messages say how far. Either way they leave as tiles of tokens that may be mapped now.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/status.h"

#include "core/guard/reason.h"
#include "core/guard/transfer_spec.h"
#include "core/kv/buffer_pool.h"
#include "core/kv/kv_view.h"
#include "kvbridge/v1/transfer.pb.h"
#include "proto/kvbridge/v1/chunk_codec.h"
#include "server/pooled_cache.h"

namespace kvbridge::server {

struct SourceTile {
  kv::TokenRange tokens;  // of the selection
  kv::KvView view;
  int64_t view_begin = 0;                      // token of `view` that is tokens.begin
  std::shared_ptr<const void> owner;           // keeps the memory; tiles with one owner touch
  std::function<absl::Status()> check_memory;  // as engine::TileWork's; does not keep it
};

// Thread contract: one thread at a time.
class SourcePlane {
 public:
  using Answer = std::variant<std::vector<SourceTile>, guard::Refusal>;

  virtual ~SourcePlane() = default;

  // Takes a message and says which tiles it completed, or why it cannot be right.
  virtual Answer Take(const wire::ReceivedChunk& chunk) = 0;
  virtual Answer Take(const v1::ReadyUpTo& ready) = 0;
  // No more messages will come: what is missing.
  virtual std::optional<guard::Refusal> End() const = 0;
};

// What an inline source answers to ReadyUpTo, and one in a pool to a chunk.
guard::Refusal ExpectedChunks();
guard::Refusal ExpectedNoChunks();
// Refused unless it is what came last (`ready`) to `tokens`, those of the selection.
std::optional<guard::Refusal> CheckReady(const v1::ReadyUpTo& message, int64_t ready,
                                         int64_t tokens);

using SourceOrRefusal = std::variant<std::shared_ptr<SourcePlane>, guard::Refusal>;

// Chunks of tokens `wanted`, put together in buffers of `pool`: at most `max_open_tiles` that are
// begun and not complete. `scales` is empty or [layers * 2] as kv::KvView::planes.
SourceOrRefusal InlineSource(const model::KvGeometry& geometry, kv::TokenRange wanted,
                             std::vector<std::vector<float>> scales, int64_t tile_tokens,
                             size_t max_open_tiles, std::shared_ptr<kv::BufferPool> pool);

// Pages that an engine fills, read where they lie. Only tokens `wanted` leave as tiles, and are
// waited for.
std::shared_ptr<SourcePlane> PoolSource(kv::TokenRange wanted,
                                        std::shared_ptr<const PooledCache> cache);

}  // namespace kvbridge::server
