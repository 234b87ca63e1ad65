// Puts a cache that arrives in chunks back together, tile by tile. A tile is a fixed number of
// consecutive tokens (the last one may be shorter), all layers, K and V; tiles leave as soon as
// every byte of them has come, in whatever order the chunks came.
//
// Completeness is proven by accounting: per tile, layer and component the exact set of tokens
// received. A tile that is handed out holds no byte of an earlier request.
//
// Thread contract: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/kv/buffer_pool.h"
#include "core/kv/kv_view.h"
#include "core/kv/token_set.h"
#include "core/tensor/dtype.h"

namespace kvbridge::kv {

// What a chunk's bytes are: dense row-major [layers, tokens, kv_heads, head_dim] of one component.
struct ChunkHeader {
  LayerRange layers;
  Component component = Component::kKey;
  TokenRange tokens;
};

// A complete tile. `view` is a DenseTileView over `buffer`, scales filled in; its token 0 is
// `tokens.begin` of the selection.
struct Tile {
  TokenRange tokens;
  std::shared_ptr<TileBuffer> buffer;
  KvView view;
};

class TileAssembler {
 public:
  struct Options {
    tensor::DType dtype = tensor::DType::kBf16;
    int32_t layers = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    // Tokens [first_token, tokens) come. Already checked against the caller's limit: each tile
    // costs some 100 bytes.
    int64_t first_token = 0;
    int64_t tokens = 0;
    int64_t tile_tokens = 0;
    // Bound on tiles that have begun to arrive and have not been taken.
    uint64_t max_open_bytes = 0;
    // [layers * 2] as KvView::planes, each as Plane::scales; empty when the dtype is not FP8.
    std::vector<std::vector<float>> scales;
  };

  // INVALID_ARGUMENT names the field; RESOURCE_EXHAUSTED when max_open_bytes cannot hold one tile.
  static absl::StatusOr<TileAssembler> Create(Options options, std::shared_ptr<BufferPool> pool);

  // Takes one chunk and returns the indices of the tiles that it completed. On any error the chunk
  // is not consumed and nothing has changed.
  //   INVALID_ARGUMENT    "layer range", "token range": empty, reversed or out of bounds;
  //                       "chunk bytes": not what the ranges need;
  //                       "duplicate chunk": every cell of it came before;
  //                       "overlapping chunk": some of its cells came before
  //   RESOURCE_EXHAUSTED  "max_open_bytes", or the pool's own limit
  absl::StatusOr<std::vector<int64_t>> Add(const ChunkHeader& chunk,
                                           std::span<const std::byte> bytes);
  // The same for bytes that lie in several slices, and with the caller's way to copy them: a
  // checksum is cheap where the bytes pass anyway. `copy` is called for piece after piece, in the
  // order of the chunk's bytes; then `verify`, whose error is returned and leaves what was copied
  // uncounted, as if it had never come.
  using Copy = absl::FunctionRef<void(std::byte* to, std::span<const std::byte> from)>;
  using Verify = absl::FunctionRef<absl::Status()>;
  absl::StatusOr<std::vector<int64_t>> Add(const ChunkHeader& chunk,
                                           std::span<const std::span<const std::byte>> slices);
  absl::StatusOr<std::vector<int64_t>> Add(const ChunkHeader& chunk,
                                           std::span<const std::span<const std::byte>> slices,
                                           Copy copy, Verify verify);

  // Hands a complete tile over, once: FAILED_PRECONDITION when it is incomplete or taken,
  // OUT_OF_RANGE when there is no such tile.
  absl::StatusOr<Tile> TakeTile(int64_t index);

  // INVALID_ARGUMENT "missing" names the first layer, component and token that never came.
  absl::Status Finish() const;

  int64_t tile_count() const { return static_cast<int64_t>(tiles_.size()); }
  uint64_t open_bytes() const { return open_bytes_; }

 private:
  enum class Stage : uint8_t { kUntouched, kFilling, kComplete, kTaken };

  struct Slot {
    Stage stage = Stage::kUntouched;
    std::shared_ptr<TileBuffer> buffer;  // while kFilling and kComplete
    std::vector<TokenSet> received;      // while kFilling: [layers * 2], tokens of the selection
    int64_t missing_cells = 0;           // while kFilling; a cell is one token of one plane
  };

  TileAssembler(Options options, std::shared_ptr<BufferPool> pool, int64_t tiles);

  TokenRange TileTokens(int64_t tile) const;
  int64_t TileOf(int64_t token) const {
    return (token - options_.first_token) / options_.tile_tokens;
  }
  uint64_t TileBytes(int64_t tile) const;
  std::span<std::byte> Cells(int64_t tile, size_t plane, TokenRange tokens) const;
  template <typename Visit>
  void ForEachPiece(const ChunkHeader& chunk, Visit visit) const;
  absl::Status CheckRanges(const ChunkHeader& chunk, uint64_t bytes) const;
  absl::Status CheckNew(const ChunkHeader& chunk) const;
  absl::Status OpenTiles(TokenRange tokens);

  Options options_;
  uint64_t row_bytes_ = 0;  // one cell
  std::shared_ptr<BufferPool> pool_;
  std::vector<Slot> tiles_;
  uint64_t open_bytes_ = 0;
};

}  // namespace kvbridge::kv
