#include "server/relay_source.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "proto/kvbridge/v1/crc32c.h"
#include "server/source_plane.h"
#include "server/target_plane.h"

namespace kvbridge::server {
namespace {

using guard::Fallback;
using guard::Reason;

// All of a buffer.
CacheChunk InMemory(v1::TransferChunk head, std::shared_ptr<kv::TileBuffer> buffer) {
  const std::span<const std::byte> payload(buffer->data(), buffer->size());
  return {std::move(head), payload, std::move(buffer)};
}

class Chunks final : public RelaySource {
 public:
  explicit Chunks(std::shared_ptr<kv::BufferPool> buffers) : buffers_(std::move(buffers)) {}

  Answer Take(const wire::ReceivedChunk& chunk) override {
    if (chunk.bytes == 0 || chunk.bytes > kMaxChunkBytes) {
      return Fallback(
          Reason::kInvalidRequest,
          absl::StrCat("chunk.data: expected 1 to ", kMaxChunkBytes, " bytes, got ", chunk.bytes));
    }
    auto buffer = buffers_->Acquire(chunk.bytes);
    if (!buffer.ok()) return Fallback(Reason::kOverload, buffer.status().message());
    uint32_t crc = 0;
    std::byte* to = (*buffer)->data();
    for (const std::span<const std::byte> piece : chunk.data) {
      crc = wire::CopyCrc32c(to, piece, crc);
      to += piece.size();
    }
    const absl::Status intact = wire::VerifyCrc(chunk.head, crc);
    if (!intact.ok()) return Fallback(Reason::kTransport, intact.message());
    return std::vector<CacheChunk>{InMemory(chunk.head, *std::move(buffer))};
  }

  Answer Take(const v1::ReadyUpTo&) override { return ExpectedChunks(); }
  Answer Next() override { return std::vector<CacheChunk>(); }
  bool Complete(bool input_ended) const override { return input_ended; }

 private:
  const std::shared_ptr<kv::BufferPool> buffers_;
};

// A span of tokens after the other, because the peer maps tiles of tokens: of each, the keys of all
// layers, then the values.
class Pages final : public RelaySource {
 public:
  Pages(const guard::TransferSpec& spec, bool streamed, std::shared_ptr<const PooledCache> cache,
        std::shared_ptr<kv::BufferPool> buffers)
      : cache_(std::move(cache)),
        buffers_(std::move(buffers)),
        tokens_(spec.tokens),
        ready_(streamed ? spec.first_token : spec.tokens),
        token_bytes_(cache_->view().row() *
                     static_cast<int64_t>(tensor::ByteSize(cache_->view().dtype))),
        span_tokens_(std::clamp<int64_t>(
            static_cast<int64_t>(kMaxChunkBytes) / (token_bytes_ * cache_->view().layers), 1,
            kMaxSpan)),
        first_token_(spec.first_token),
        next_token_(spec.first_token) {}

  Answer Take(const wire::ReceivedChunk&) override { return ExpectedNoChunks(); }
  Answer Take(const v1::ReadyUpTo& ready) override {
    if (auto no = CheckReady(ready, ready_, tokens_)) return *std::move(no);
    ready_ = ready.token_end();
    return std::vector<CacheChunk>();
  }

  void SetPeerTile(int64_t tokens) override { peer_tile_ = tokens; }
  Answer Next() override {
    if (next_token_ == ready_) return std::vector<CacheChunk>();
    if (span_.size() == 0) {
      const int64_t left = peer_tile_ - (next_token_ - first_token_) % peer_tile_;
      span_ = {next_token_, std::min(next_token_ + std::min(span_tokens_, left), ready_)};
    }
    const int32_t layers = cache_->view().layers;
    const int64_t plane_bytes = span_.size() * token_bytes_;
    const auto step = static_cast<int32_t>(
        std::clamp<int64_t>(static_cast<int64_t>(kMaxChunkBytes) / plane_bytes, 1, layers));
    const kv::LayerRange range{layer_, std::min(layer_ + step, layers)};
    auto buffer = buffers_->Acquire(range.size() * plane_bytes);
    if (!buffer.ok()) return Fallback(Reason::kOverload, buffer.status().message());
    v1::TransferChunk head = Gather(range, (*buffer)->data());
    if (const absl::Status whole = cache_->CheckWhole(); !whole.ok()) {
      return Fallback(Reason::kTransport, whole.message());
    }
    Advance(range);
    return std::vector<CacheChunk>{InMemory(std::move(head), *std::move(buffer))};
  }

  bool Complete(bool) const override { return next_token_ == tokens_; }

 private:
  static constexpr int64_t kMaxSpan = 256;  // tokens

  v1::TransferChunk Gather(kv::LayerRange layers, std::byte* to) const {
    const kv::KvView& view = cache_->view();
    const int64_t head_bytes = view.head_dim * static_cast<int64_t>(tensor::ByteSize(view.dtype));
    v1::TransferChunk head;
    head.set_layer_begin(layers.begin);
    head.set_layer_end(layers.end);
    head.set_component(component_ == kv::Component::kKey ? v1::COMPONENT_KEY : v1::COMPONENT_VALUE);
    head.set_token_begin(span_.begin);
    head.set_token_end(span_.end);
    uint32_t crc = 0;
    for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
      const int64_t head_stride = view.plane(layer, component_).head_stride;
      const bool dense = head_stride == head_bytes;
      const int64_t piece = dense ? token_bytes_ : head_bytes;
      for (int64_t token = span_.begin; token < span_.end; ++token) {
        const std::byte* row = view.Row(layer, component_, token);
        for (int64_t done = 0; done < token_bytes_; done += piece, to += piece) {
          const std::byte* from = dense ? row : row + done / head_bytes * head_stride;
          crc = wire::CopyCrc32c(to, {from, static_cast<size_t>(piece)}, crc);
        }
      }
    }
    head.set_crc32c(crc);
    return head;
  }

  void Advance(kv::LayerRange sent) {
    layer_ = sent.end;
    if (layer_ < cache_->view().layers) return;
    layer_ = 0;
    const bool both = component_ == kv::Component::kValue;
    component_ = both ? kv::Component::kKey : kv::Component::kValue;
    if (!both) return;
    next_token_ = span_.end;
    span_ = {};
  }

  const std::shared_ptr<const PooledCache> cache_;
  const std::shared_ptr<kv::BufferPool> buffers_;
  const int64_t tokens_;
  int64_t ready_;              // tokens that may be read
  const int64_t token_bytes_;  // of one layer and component
  const int64_t span_tokens_;  // all layers of so many fit a frame, if any do
  const int64_t first_token_;
  int64_t peer_tile_ = kMaxSpan;  // tokens, counted from first_token_
  int64_t next_token_;
  kv::TokenRange span_;  // tokens that are being sent, from next_token_ on
  kv::Component component_ = kv::Component::kKey;
  int32_t layer_ = 0;
};

}  // namespace

std::unique_ptr<RelaySource> ChunkRelay(std::shared_ptr<kv::BufferPool> buffers) {
  return std::make_unique<Chunks>(std::move(buffers));
}

std::unique_ptr<RelaySource> PoolRelay(const guard::TransferSpec& spec, bool streamed,
                                       std::shared_ptr<const PooledCache> cache,
                                       std::shared_ptr<kv::BufferPool> buffers) {
  return std::make_unique<Pages>(spec, streamed, std::move(cache), std::move(buffers));
}

}  // namespace kvbridge::server
