// Cuts a source cache into chunks, in the order that a server maps soonest: all layers of a tile of
// tokens, then the next tile.
//
// Thread contract: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/cpp/cache_view.h"
#include "client/cpp/chunk_buffers.h"
#include "grpcpp/support/byte_buffer.h"

namespace kvbridge::client {

// Most payload bytes of one chunk: the 4 MiB that every gRPC library receives by default, less room
// for the message's other fields.
inline constexpr size_t kMaxChunkBytes = (size_t{4} << 20) - (size_t{64} << 10);

class ChunkSource {
 public:
  // Sends tokens [first_token, tokens) of `view`, which passed Validate, has a row of at most
  // kMaxChunkBytes, and is borrowed. `buffers` are of kMaxChunkBytes.
  ChunkSource(const SourceView& view, int64_t tokens, int64_t tile_tokens,
              std::shared_ptr<ChunkBuffers> buffers, int64_t first_token = 0);

  bool done() const { return next_ == pieces_.size() && tile_begin_ == tokens_; }
  // The next chunk as a message of the Transfer stream. Not when done().
  grpc::ByteBuffer Next();

  // Payload bytes handed out so far.
  int64_t bytes() const { return bytes_; }

 private:
  void CutTile();
  bool SendsInPlace(int64_t tile_tokens) const;

  const SourceView& view_;
  const int64_t tokens_;
  const int64_t tile_tokens_;
  const std::shared_ptr<ChunkBuffers> buffers_;
  int64_t tile_begin_;         // of the first tile that is not cut yet
  std::vector<Piece> pieces_;  // of the tile being sent
  size_t next_ = 0;            // into pieces_
  int64_t bytes_ = 0;
};

}  // namespace kvbridge::client
