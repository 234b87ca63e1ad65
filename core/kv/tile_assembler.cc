#include "core/kv/tile_assembler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::kv {
namespace {

std::string CellName(int32_t layer, Component c, int64_t token) {
  return absl::StrCat("layer ", layer, ", ", Name(c), ", token ", token);
}

size_t PlaneIndex(int32_t layer, Component c) { return size_t(layer) * 2 + static_cast<size_t>(c); }

absl::Status CheckRange(absl::string_view what, int64_t begin, int64_t end, int64_t first,
                        int64_t limit) {
  if (begin >= first && begin < end && end <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": expected ", first, " <= begin < end <= ", limit, ", got [", begin, ", ", end, ")"));
}

// Bytes of the whole cache; the error when they cannot be counted in 63 bits.
absl::Status CheckCounts(const TileAssembler::Options& o) {
  const std::pair<absl::string_view, int64_t> counts[] = {{"layers", o.layers},
                                                          {"kv_heads", o.kv_heads},
                                                          {"head_dim", o.head_dim},
                                                          {"tokens", o.tokens},
                                                          {"tile_tokens", o.tile_tokens}};
  for (const auto& [field, count] : counts) {
    if (count > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, ": expected at least 1, got ", count));
  }
  if (o.first_token < 0 || o.first_token >= o.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_token: expected 0 to ", o.tokens - 1, ", got ", o.first_token));
  }
  uint64_t bytes = 2 * ByteSize(o.dtype);
  for (int64_t factor : {int64_t{o.layers}, int64_t{o.kv_heads}, int64_t{o.head_dim}, o.tokens}) {
    if (base::CheckedMul(bytes, factor, &bytes) && bytes <= std::numeric_limits<int64_t>::max()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: expected the cache's bytes to fit 63 bits, got ", o.tokens));
  }
  return absl::OkStatus();
}

absl::Status CheckScales(const TileAssembler::Options& o) {
  const size_t planes = size_t(o.layers) * 2;
  const bool wanted = o.dtype == tensor::DType::kF8E4M3;
  if (o.scales.size() != (wanted ? planes : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scales: expected ", wanted ? planes : 0, " entries, got ", o.scales.size()));
  }
  for (size_t i = 0; i < o.scales.size(); ++i) {
    KVB_RETURN_IF_ERROR(
        ValidateScales(o.dtype, o.kv_heads, o.scales[i], absl::StrCat("scales[", i, "]")));
  }
  return absl::OkStatus();
}

// Reads slices one after the other as if they were one.
class SliceReader {
 public:
  explicit SliceReader(std::span<const std::span<const std::byte>> slices) : slices_(slices) {}

  // The slices hold enough: the chunk's length was checked.
  void ReadInto(std::span<std::byte> out, TileAssembler::Copy copy) {
    while (!out.empty()) {
      const auto rest = slices_.front().subspan(offset_);
      const size_t n = std::min(rest.size(), out.size());
      if (n > 0) copy(out.data(), rest.first(n));
      out = out.subspan(n);
      offset_ += n;
      if (n == rest.size()) {
        slices_ = slices_.subspan(1);
        offset_ = 0;
      }
    }
  }

 private:
  std::span<const std::span<const std::byte>> slices_;
  size_t offset_ = 0;
};

}  // namespace

TileAssembler::TileAssembler(Options options, std::shared_ptr<BufferPool> pool, int64_t tiles)
    : options_(std::move(options)),
      row_bytes_(ByteSize(options_.dtype) * options_.kv_heads * options_.head_dim),
      pool_(std::move(pool)),
      tiles_(tiles) {}

absl::StatusOr<TileAssembler> TileAssembler::Create(Options options,
                                                    std::shared_ptr<BufferPool> pool) {
  KVB_RETURN_IF_ERROR(CheckCounts(options));
  KVB_RETURN_IF_ERROR(CheckScales(options));
  const int64_t tiles = (options.tokens - options.first_token - 1) / options.tile_tokens + 1;
  TileAssembler assembler(std::move(options), std::move(pool), tiles);
  if (assembler.TileBytes(0) > assembler.options_.max_open_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "max_open_bytes: expected at least one tile of ", base::HumanBytes(assembler.TileBytes(0)),
        ", got ", base::HumanBytes(assembler.options_.max_open_bytes)));
  }
  return assembler;
}

TokenRange TileAssembler::TileTokens(int64_t tile) const {
  const int64_t begin = options_.first_token + tile * options_.tile_tokens;
  return {begin, begin + std::min(options_.tile_tokens, options_.tokens - begin)};
}

uint64_t TileAssembler::TileBytes(int64_t tile) const {
  return TileTokens(tile).size() * row_bytes_ * 2 * options_.layers;
}

std::span<std::byte> TileAssembler::Cells(int64_t tile, size_t plane, TokenRange tokens) const {
  const TokenRange all = TileTokens(tile);
  const uint64_t row = plane * all.size() + (tokens.begin - all.begin);
  return {tiles_[tile].buffer->data() + row * row_bytes_, tokens.size() * row_bytes_};
}

// Calls visit(layer, tile, tokens) for the parts of a chunk that lie in one tile and layer each, in
// the order of the chunk's bytes.
template <typename Visit>
void TileAssembler::ForEachPiece(const ChunkHeader& chunk, Visit visit) const {
  for (int32_t layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
    for (int64_t begin = chunk.tokens.begin; begin < chunk.tokens.end;) {
      const int64_t tile = TileOf(begin);
      const int64_t end = std::min(chunk.tokens.end, TileTokens(tile).end);
      visit(layer, tile, TokenRange{begin, end});
      begin = end;
    }
  }
}

absl::Status TileAssembler::CheckRanges(const ChunkHeader& chunk, uint64_t bytes) const {
  KVB_RETURN_IF_ERROR(
      CheckRange("layer range", chunk.layers.begin, chunk.layers.end, 0, options_.layers));
  KVB_RETURN_IF_ERROR(CheckRange("token range", chunk.tokens.begin, chunk.tokens.end,
                                 options_.first_token, options_.tokens));
  const uint64_t expected = row_bytes_ * chunk.layers.size() * chunk.tokens.size();
  if (bytes == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("chunk bytes: expected ", expected, " for its ranges, got ", bytes));
}

absl::Status TileAssembler::CheckNew(const ChunkHeader& chunk) const {
  int64_t known = 0;
  std::string first_known;
  ForEachPiece(chunk, [&](int32_t layer, int64_t tile, TokenRange tokens) {
    const Slot& slot = tiles_[tile];
    if (slot.stage == Stage::kUntouched) return;
    int64_t here = tokens.size();
    int64_t first = tokens.begin;
    if (slot.stage == Stage::kFilling) {
      const TokenSet& received = slot.received[PlaneIndex(layer, chunk.component)];
      here = received.CountIn(tokens);
      first = received.FirstIn(tokens);
    }
    if (known == 0 && here > 0) first_known = CellName(layer, chunk.component, first);
    known += here;
  });
  if (known == 0) return absl::OkStatus();
  const bool all = known == int64_t{chunk.layers.size()} * chunk.tokens.size();
  return absl::InvalidArgumentError(absl::StrCat(
      all ? "duplicate" : "overlapping", " chunk: layers [", chunk.layers.begin, ", ",
      chunk.layers.end, "), ", Name(chunk.component), ", tokens [", chunk.tokens.begin, ", ",
      chunk.tokens.end, "): expected cells not sent before, got ", first_known, " again"));
}

absl::Status TileAssembler::OpenTiles(TokenRange tokens) {
  std::vector<int64_t> fresh;
  uint64_t fresh_bytes = 0;
  for (int64_t tile = TileOf(tokens.begin); tile <= TileOf(tokens.end - 1); ++tile) {
    if (tiles_[tile].stage != Stage::kUntouched) continue;
    fresh.push_back(tile);
    fresh_bytes += TileBytes(tile);
  }
  if (fresh_bytes > options_.max_open_bytes - open_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_open_bytes: expected at most ", base::HumanBytes(options_.max_open_bytes),
                     " of open tiles, got ", base::HumanBytes(fresh_bytes), " more than ",
                     base::HumanBytes(open_bytes_)));
  }
  std::vector<std::shared_ptr<TileBuffer>> buffers;
  for (int64_t tile : fresh) {
    KVB_ASSIGN_OR_RETURN(buffers.emplace_back(), pool_->Acquire(TileBytes(tile)));
  }
  for (size_t i = 0; i < fresh.size(); ++i) {
    const int64_t planes = int64_t{options_.layers} * 2;
    tiles_[fresh[i]] = {.stage = Stage::kFilling,
                        .buffer = std::move(buffers[i]),
                        .received = std::vector<TokenSet>(planes),
                        .missing_cells = planes * TileTokens(fresh[i]).size()};
  }
  open_bytes_ += fresh_bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> TileAssembler::Add(const ChunkHeader& chunk,
                                                        std::span<const std::byte> bytes) {
  return Add(chunk, std::span(&bytes, 1));
}

absl::StatusOr<std::vector<int64_t>> TileAssembler::Add(
    const ChunkHeader& chunk, std::span<const std::span<const std::byte>> slices) {
  const auto copy = [](std::byte* to, std::span<const std::byte> from) {
    std::memcpy(to, from.data(), from.size());
  };
  return Add(chunk, slices, copy, [] { return absl::OkStatus(); });
}

absl::StatusOr<std::vector<int64_t>> TileAssembler::Add(
    const ChunkHeader& chunk, std::span<const std::span<const std::byte>> slices, Copy copy,
    Verify verify) {
  uint64_t bytes = 0;
  for (const auto& slice : slices) bytes += slice.size();
  KVB_RETURN_IF_ERROR(CheckRanges(chunk, bytes));
  KVB_RETURN_IF_ERROR(CheckNew(chunk));
  KVB_RETURN_IF_ERROR(OpenTiles(chunk.tokens));

  SliceReader reader(slices);
  ForEachPiece(chunk, [&](int32_t layer, int64_t tile, TokenRange tokens) {
    reader.ReadInto(Cells(tile, PlaneIndex(layer, chunk.component), tokens), copy);
  });
  KVB_RETURN_IF_ERROR(verify());
  std::vector<int64_t> completed;
  ForEachPiece(chunk, [&](int32_t layer, int64_t tile, TokenRange tokens) {
    const size_t plane = PlaneIndex(layer, chunk.component);
    Slot& slot = tiles_[tile];
    slot.received[plane].Insert(tokens);
    slot.missing_cells -= tokens.size();
    if (slot.missing_cells > 0) return;
    slot.stage = Stage::kComplete;
    slot.received = {};
    completed.push_back(tile);
  });
  return completed;
}

absl::StatusOr<Tile> TileAssembler::TakeTile(int64_t index) {
  if (index < 0 || index >= tile_count()) {
    return absl::OutOfRangeError(
        absl::StrCat("tile: expected 0 <= index < ", tile_count(), ", got ", index));
  }
  Slot& slot = tiles_[index];
  if (slot.stage != Stage::kComplete) {
    return absl::FailedPreconditionError(
        absl::StrCat("tile ", index, ": expected a complete one, got one that ",
                     slot.stage == Stage::kTaken ? "was taken" : "is incomplete"));
  }
  Tile tile{.tokens = TileTokens(index), .buffer = std::move(slot.buffer), .view = {}};
  tile.view = DenseTileView(tile.buffer->data(), options_.dtype, options_.layers,
                            tile.tokens.size(), options_.kv_heads, options_.head_dim);
  for (size_t i = 0; i < options_.scales.size(); ++i) {
    tile.view.planes[i].scales = options_.scales[i];
  }
  slot.stage = Stage::kTaken;
  open_bytes_ -= TileBytes(index);
  return tile;
}

absl::Status TileAssembler::Finish() const {
  for (int64_t tile = 0; tile < tile_count(); ++tile) {
    const Slot& slot = tiles_[tile];
    if (slot.stage == Stage::kComplete || slot.stage == Stage::kTaken) continue;
    const TokenRange all = TileTokens(tile);
    for (int32_t layer = 0; layer < options_.layers; ++layer) {
      for (Component c : kComponents) {
        const int64_t token = slot.stage == Stage::kUntouched
                                  ? all.begin
                                  : slot.received[PlaneIndex(layer, c)].FirstNotIn(all);
        if (token == all.end) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("missing: ", CellName(layer, c, token), " never came"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::kv
