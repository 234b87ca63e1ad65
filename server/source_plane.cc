#include "server/source_plane.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/kv/tile_assembler.h"
#include "proto/kvbridge/v1/crc32c.h"
#include "server/convert.h"
#include "server/target_plane.h"

namespace kvbridge::server {
namespace {

using guard::Fallback;
using guard::Reason;
using guard::Refusal;

// What the assembler found wrong with a chunk.
Refusal FromAssembler(const absl::Status& status) {
  if (absl::IsDataLoss(status)) return Fallback(Reason::kTransport, status.message());
  return Fallback(absl::IsResourceExhausted(status) ? Reason::kOverload : Reason::kShapeMismatch,
                  absl::StrCat("chunk: ", status.message()));
}

class Inline final : public SourcePlane {
 public:
  explicit Inline(kv::TileAssembler assembler) : assembler_(std::move(assembler)) {}

  Answer Take(const wire::ReceivedChunk& chunk) override {
    if (chunk.bytes > kMaxChunkBytes) {
      return Fallback(Reason::kInvalidRequest,
                      absl::StrCat("chunk.data: expected at most ", kMaxChunkBytes, " bytes, got ",
                                   chunk.bytes));
    }
    const auto head = ToChunkHeader(chunk.head);
    if (!head.ok()) return Fallback(Reason::kInvalidRequest, head.status().message());
    uint32_t crc = 0;
    const auto complete = assembler_.Add(
        *head, chunk.data,
        [&crc](std::byte* to, std::span<const std::byte> from) {
          crc = wire::CopyCrc32c(to, from, crc);
        },
        [&] { return wire::VerifyCrc(chunk.head, crc); });
    if (!complete.ok()) return FromAssembler(complete.status());
    std::vector<SourceTile> tiles;
    for (const int64_t index : *complete) {
      auto tile = assembler_.TakeTile(index);
      if (!tile.ok()) return Fallback(Reason::kInternal, tile.status().message());
      tiles.push_back({.tokens = tile->tokens,
                       .view = std::move(tile->view),
                       .owner = std::move(tile->buffer)});
    }
    return tiles;
  }

  Answer Take(const v1::ReadyUpTo&) override { return ExpectedChunks(); }

  std::optional<Refusal> End() const override {
    const absl::Status missing = assembler_.Finish();
    if (missing.ok()) return std::nullopt;
    return FromAssembler(missing);
  }

 private:
  kv::TileAssembler assembler_;
};

class Pool final : public SourcePlane {
 public:
  Pool(kv::TokenRange wanted, std::shared_ptr<const PooledCache> cache)
      : cache_(std::move(cache)), wanted_(wanted) {}

  Answer Take(const wire::ReceivedChunk&) override { return ExpectedNoChunks(); }

  Answer Take(const v1::ReadyUpTo& message) override {
    if (auto no = CheckReady(message, ready_, cache_->view().tokens)) return *std::move(no);
    ready_ = message.token_end();
    const kv::TokenRange fresh{wanted_.begin, std::min(ready_, wanted_.end)};
    if (fresh.size() <= 0) return std::vector<SourceTile>();
    wanted_.begin = fresh.end;
    // Nothing is left to be checked once the pages are released.
    const auto check = [weak = std::weak_ptr(cache_)] {
      const auto cache = weak.lock();
      return cache == nullptr ? absl::OkStatus() : cache->CheckWhole();
    };
    return std::vector<SourceTile>{{fresh, cache_->view(), fresh.begin, cache_, check}};
  }

  std::optional<Refusal> End() const override {
    if (wanted_.size() <= 0) return std::nullopt;
    return Fallback(Reason::kShapeMismatch,
                    absl::StrCat("ready_up_to: expected tokens up to ", wanted_.end, ", token ",
                                 wanted_.begin, " was never ready"));
  }

 private:
  const std::shared_ptr<const PooledCache> cache_;
  int64_t ready_ = 0;      // as the last message said
  kv::TokenRange wanted_;  // and not handed out yet
};

}  // namespace

Refusal ExpectedChunks() {
  return Fallback(Reason::kInvalidRequest,
                  "ready_up_to: expected chunks for an inline source_selection");
}

Refusal ExpectedNoChunks() {
  return Fallback(Reason::kInvalidRequest,
                  "chunk: expected none, since source_selection lies in a pool");
}

std::optional<Refusal> CheckReady(const v1::ReadyUpTo& message, int64_t ready, int64_t tokens) {
  if (message.token_end() >= ready && message.token_end() <= tokens) return std::nullopt;
  return Fallback(Reason::kShapeMismatch,
                  absl::StrCat("ready_up_to.token_end: expected ", ready, " to ", tokens, ", got ",
                               message.token_end()));
}

SourceOrRefusal InlineSource(const model::KvGeometry& geometry, kv::TokenRange wanted,
                             std::vector<std::vector<float>> scales, int64_t tile_tokens,
                             size_t max_open_tiles, std::shared_ptr<kv::BufferPool> pool) {
  auto assembler = kv::TileAssembler::Create(
      {.dtype = geometry.dtype,
       .layers = geometry.layers,
       .kv_heads = geometry.kv_heads,
       .head_dim = geometry.head_dim,
       .first_token = wanted.begin,
       .tokens = wanted.end,
       .tile_tokens = tile_tokens,
       .max_open_bytes = max_open_tiles * tile_tokens * geometry.token_bytes(),
       .scales = std::move(scales)},
      std::move(pool));
  if (!assembler.ok()) return FromAssembler(assembler.status());
  return std::make_shared<Inline>(*std::move(assembler));
}

std::shared_ptr<SourcePlane> PoolSource(kv::TokenRange wanted,
                                        std::shared_ptr<const PooledCache> cache) {
  return std::make_shared<Pool>(wanted, std::move(cache));
}

}  // namespace kvbridge::server
