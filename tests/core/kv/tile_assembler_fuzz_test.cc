// Random caches, cut into random chunks that arrive in random order: what comes out must be what
// was cut, and every damaged chunk must be answered by its own error and change nothing.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include "core/kv/tile_assembler.h"
#include "tests/core/kv/status_matcher.h"

namespace kvbridge::kv {
namespace {

using absl::StatusCode::kInvalidArgument;
using tensor::DType;

class Model {
 public:
  explicit Model(uint32_t seed) : random_(seed) {
    constexpr DType kTypes[] = {DType::kBf16, DType::kF16, DType::kF32};
    options_ = {.dtype = kTypes[Below(3)],
                .layers = 1 + Below(5),
                .kv_heads = 1 + Below(3),
                .head_dim = 1 + Below(7),
                .tokens = 1 + Below(40),
                .tile_tokens = 1 + Below(12),
                .max_open_bytes = 1 << 20,
                .scales = {}};
    row_bytes_ = ByteSize(options_.dtype) * options_.kv_heads * options_.head_dim;
    cache_.resize(options_.layers * 2 * options_.tokens * row_bytes_);
    for (std::byte& b : cache_) b = std::byte(random_());
  }

  const TileAssembler::Options& options() const { return options_; }
  int32_t Below(int64_t n) { return static_cast<int32_t>(random_() % n); }

  const std::byte* Row(int32_t layer, Component c, int64_t token) const {
    return cache_.data() + ((layer * 2 + int(c)) * options_.tokens + token) * row_bytes_;
  }

  std::vector<std::byte> Bytes(const ChunkHeader& chunk) const {
    std::vector<std::byte> bytes;
    for (int32_t layer = chunk.layers.begin; layer < chunk.layers.end; ++layer) {
      const std::byte* rows = Row(layer, chunk.component, chunk.tokens.begin);
      bytes.insert(bytes.end(), rows, rows + chunk.tokens.size() * row_bytes_);
    }
    return bytes;
  }

  // Each component cut into rectangles by repeated splits at random places.
  std::vector<ChunkHeader> Cut() {
    std::vector<ChunkHeader> chunks;
    for (Component c : kComponents) {
      chunks.push_back({{0, options_.layers}, c, {0, options_.tokens}});
    }
    for (int split = Below(40); split > 0; --split) {
      ChunkHeader& whole = chunks[Below(chunks.size())];
      ChunkHeader rest = whole;
      if (Below(2) == 0 && whole.layers.size() > 1) {
        whole.layers.end = rest.layers.begin =
            whole.layers.begin + 1 + Below(whole.layers.size() - 1);
      } else if (whole.tokens.size() > 1) {
        whole.tokens.end = rest.tokens.begin =
            whole.tokens.begin + 1 + Below(whole.tokens.size() - 1);
      } else {
        continue;
      }
      chunks.push_back(rest);
    }
    std::shuffle(chunks.begin(), chunks.end(), random_);
    return chunks;
  }

  std::vector<std::span<const std::byte>> Slice(std::span<const std::byte> bytes) {
    std::vector<std::span<const std::byte>> slices;
    while (!bytes.empty()) {
      const size_t n = Below(bytes.size() + 1);
      slices.push_back(bytes.first(n));
      bytes = bytes.subspan(n);
    }
    return slices;
  }

  void ExpectSame(const Tile& tile) const {
    const size_t run = tile.tokens.size() * row_bytes_;
    for (int32_t layer = 0; layer < options_.layers; ++layer) {
      for (Component c : kComponents) {
        ASSERT_EQ(std::memcmp(tile.view.Row(layer, c, 0), Row(layer, c, tile.tokens.begin), run), 0)
            << "layer " << layer << " " << Name(c) << " tokens from " << tile.tokens.begin;
      }
    }
  }

  // One damaged form of `chunk`, which has been added already.
  void ExpectRefused(TileAssembler& assembler, const ChunkHeader& chunk) {
    ChunkHeader bad = chunk;
    std::vector<std::byte> bytes = Bytes(chunk);
    const char* error = "duplicate chunk";
    switch (Below(6)) {
      case 0:
        bytes.pop_back();
        error = "chunk bytes";
        break;
      case 1:
        bytes.resize(bytes.size() + 1 + Below(100));
        error = "chunk bytes";
        break;
      case 2:
        bad.layers = Below(2) ? LayerRange{chunk.layers.end, chunk.layers.begin}
                              : LayerRange{chunk.layers.begin, options_.layers + 1};
        error = "layer range";
        break;
      case 3:
        bad.tokens = Below(2) ? TokenRange{chunk.tokens.end, chunk.tokens.begin}
                              : TokenRange{-1, chunk.tokens.end};
        error = "token range";
        break;
      case 4:
        bad.tokens.end = bad.tokens.begin + 1;  // part of it again
        bytes = Bytes(bad);
        break;
      default:
        break;
    }
    ASSERT_THAT(assembler.Add(bad, bytes), IsError(kInvalidArgument, error));
  }

  // All of the component again, while some of it has not come: an overlap.
  void ExpectOverlap(TileAssembler& assembler, Component c) {
    const ChunkHeader all{{0, options_.layers}, c, {0, options_.tokens}};
    ASSERT_THAT(assembler.Add(all, std::vector<std::byte>(Bytes(all).size())),
                IsError(kInvalidArgument, "overlapping chunk"));
  }

 private:
  std::mt19937 random_;
  TileAssembler::Options options_;
  size_t row_bytes_;
  std::vector<std::byte> cache_;
};

// Chunks still to come, counted per component.
int64_t Left(std::span<const ChunkHeader> chunks, Component c) {
  return std::ranges::count(chunks, c, &ChunkHeader::component);
}

void RunOne(uint32_t seed, const std::shared_ptr<BufferPool>& pool) {
  Model model(seed);
  TileAssembler assembler = TileAssembler::Create(model.options(), pool).value();
  const std::vector<ChunkHeader> chunks = model.Cut();
  std::vector<bool> seen(assembler.tile_count(), false);
  for (size_t i = 0; i < chunks.size(); ++i) {
    ASSERT_THAT(assembler.Finish(), IsError(kInvalidArgument, "missing: layer "));
    const std::vector<std::byte> bytes = model.Bytes(chunks[i]);
    const auto completed = model.Below(2) ? assembler.Add(chunks[i], bytes)
                                          : assembler.Add(chunks[i], model.Slice(bytes));
    ASSERT_TRUE(completed.ok()) << completed.status();
    model.ExpectRefused(assembler, chunks[model.Below(i + 1)]);
    if (Left(std::span(chunks).subspan(i + 1), chunks[i].component) > 0) {
      model.ExpectOverlap(assembler, chunks[i].component);
    }
    for (int64_t index : *completed) {
      ASSERT_FALSE(seen[index]);
      seen[index] = true;
      model.ExpectSame(assembler.TakeTile(index).value());
    }
  }
  EXPECT_TRUE(assembler.Finish().ok()) << assembler.Finish();
  EXPECT_THAT(seen, testing::Each(true));
  EXPECT_EQ(assembler.open_bytes(), 0u);
  EXPECT_EQ(pool->bytes_in_use(), 0u);
}

TEST(TileAssemblerFuzzTest, RandomChunksInRandomOrderGiveTheCacheBack) {
  const auto pool = BufferPool::Create(1 << 20);  // shared: later caches get earlier ones' bytes
  const uint32_t first_seed = testing::UnitTest::GetInstance()->random_seed() + 1000;
  std::cout << "seeds from " << first_seed << " (shifted by --gtest_random_seed)\n";
  for (uint32_t seed = first_seed; seed < first_seed + 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RunOne(seed, pool);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvbridge::kv
