#include "client/cpp/chunk_source.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "proto/kvbridge/v1/chunk_codec.h"

namespace kvbridge::client {
namespace {

// Below this, the fixed cost of a message is more than that of a copy.
constexpr size_t kMinInPlaceBytes = size_t{256} << 10;

v1::TransferChunk HeadOf(const Piece& piece) {
  v1::TransferChunk head;
  head.set_layer_begin(piece.layer_begin);
  head.set_layer_end(piece.layer_end);
  head.set_component(piece.component);
  head.set_token_begin(piece.token_begin);
  head.set_token_end(piece.token_end);
  return head;
}

}  // namespace

ChunkSource::ChunkSource(const SourceView& view, int64_t tokens, int64_t tile_tokens,
                         std::shared_ptr<ChunkBuffers> buffers, int64_t first_token)
    : view_(view),
      tokens_(tokens),
      tile_tokens_(std::clamp<int64_t>(tile_tokens, 1, tokens)),
      buffers_(std::move(buffers)),
      tile_begin_(first_token) {}

bool ChunkSource::SendsInPlace(int64_t tile_tokens) const {
  const auto row_bytes = static_cast<int64_t>(view_.row_bytes());
  return view_.owner != nullptr && view_.pages.empty() && view_.token_stride == row_bytes &&
         (view_.shape.kv_heads == 1 ||
          view_.head_stride == static_cast<int64_t>(view_.head_bytes())) &&
         tile_tokens * view_.row_bytes() >= kMinInPlaceBytes;
}

void ChunkSource::CutTile() {
  const int64_t tile_end = std::min(tile_begin_ + tile_tokens_, tokens_);
  const int64_t tile_tokens = tile_end - tile_begin_;
  const auto max_cells = static_cast<int64_t>(kMaxChunkBytes / view_.row_bytes());
  const int64_t tokens_per_piece = std::min(tile_tokens, max_cells);
  const auto layers_per_piece = static_cast<int32_t>(
      SendsInPlace(tile_tokens)
          ? 1
          : std::min<int64_t>(view_.shape.layers, max_cells / tokens_per_piece));
  pieces_.clear();
  next_ = 0;
  for (int32_t layer = 0; layer < view_.shape.layers; layer += layers_per_piece) {
    for (const auto component : {v1::COMPONENT_KEY, v1::COMPONENT_VALUE}) {
      for (int64_t token = tile_begin_; token < tile_end; token += tokens_per_piece) {
        pieces_.push_back({.layer_begin = layer,
                           .layer_end = std::min(layer + layers_per_piece, view_.shape.layers),
                           .component = component,
                           .token_begin = token,
                           .token_end = std::min(token + tokens_per_piece, tile_end)});
      }
    }
  }
  tile_begin_ = tile_end;
}

grpc::ByteBuffer ChunkSource::Next() {
  if (next_ == pieces_.size()) CutTile();
  const Piece& piece = pieces_[next_++];
  const size_t bytes = piece.cells() * view_.row_bytes();
  bytes_ += static_cast<int64_t>(bytes);
  if (SendsInPlace(piece.token_end - piece.token_begin)) {
    std::span<const std::byte> data;
    ForEachRun(view_, piece, [&](const std::byte* run, size_t size) { data = {run, size}; });
    return wire::SerializeRequestChunk(HeadOf(piece), data, [owner = view_.owner] {});
  }
  // std::function copies what it holds, so the buffer travels in a shared pointer.
  std::shared_ptr<std::byte[]> buffer(
      buffers_->Acquire().release(),
      [buffers = buffers_](std::byte* p) { buffers->Release(ChunkBuffers::Buffer(p)); });
  std::byte* to = buffer.get();
  ForEachRun(view_, piece, [&to](const std::byte* run, size_t size) {
    std::memcpy(to, run, size);
    to += size;
  });
  return wire::SerializeRequestChunk(HeadOf(piece), {buffer.get(), bytes}, [buffer] {});
}

}  // namespace kvbridge::client
