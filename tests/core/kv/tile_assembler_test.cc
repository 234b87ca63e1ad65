#include "core/kv/tile_assembler.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/core/kv/status_matcher.h"

namespace kvbridge::kv {
namespace {

using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kOutOfRange;
using absl::StatusCode::kResourceExhausted;
using tensor::DType;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kKey = Component::kKey;
constexpr auto kValue = Component::kValue;

// 3 layers, rows of 2 x 4 bf16 = 16 bytes, 10 tokens in tiles of 4, 4 and 2: 384, 384 and 192
// bytes.
constexpr size_t kRow = 16;

TileAssembler::Options SmallOptions() {
  return {.dtype = DType::kBf16,
          .layers = 3,
          .kv_heads = 2,
          .head_dim = 4,
          .tokens = 10,
          .tile_tokens = 4,
          .max_open_bytes = 1 << 20,
          .scales = {}};
}

class TileAssemblerTest : public testing::Test {
 protected:
  TileAssembler Make(TileAssembler::Options options = SmallOptions()) {
    return TileAssembler::Create(std::move(options), pool_).value();
  }

  // The right number of bytes for the ranges, all equal to `fill`.
  static absl::StatusOr<std::vector<int64_t>> Add(TileAssembler& assembler, ChunkHeader chunk,
                                                  uint8_t fill = 1) {
    const std::vector<std::byte> bytes(kRow * chunk.layers.size() * chunk.tokens.size(),
                                       std::byte{fill});
    return assembler.Add(chunk, bytes);
  }

  std::shared_ptr<BufferPool> pool_ = BufferPool::Create(1 << 20);
};

TEST_F(TileAssemblerTest, TilesCompleteWhenTheirLastByteComes) {
  TileAssembler assembler = Make();
  EXPECT_EQ(assembler.tile_count(), 3);
  EXPECT_THAT(Add(assembler, {{0, 3}, kKey, {0, 10}}).value(), IsEmpty());
  EXPECT_THAT(Add(assembler, {{0, 2}, kValue, {0, 10}}).value(), IsEmpty());
  EXPECT_THAT(Add(assembler, {{2, 3}, kValue, {3, 4}}).value(), IsEmpty());
  EXPECT_THAT(Add(assembler, {{2, 3}, kValue, {4, 10}}).value(), ElementsAre(1, 2));
  EXPECT_THAT(assembler.Finish(), IsError(kInvalidArgument, "missing: layer 2, value, token 0"));
  EXPECT_THAT(Add(assembler, {{2, 3}, kValue, {0, 3}}).value(), ElementsAre(0));
  EXPECT_TRUE(assembler.Finish().ok());
}

TEST_F(TileAssemblerTest, BytesLandWhereTheTilesViewReadsThem) {
  TileAssembler assembler = Make();
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (Component c : kComponents) {
      std::vector<uint8_t> bytes(10 * kRow);
      for (int t = 0; t < 10; ++t) {
        std::fill_n(bytes.begin() + t * kRow, kRow, layer * 64 + int(c) * 16 + t);
      }
      ASSERT_TRUE(
          assembler.Add({{layer, layer + 1}, c, {0, 10}}, std::as_bytes(std::span(bytes))).ok());
    }
  }
  for (int64_t index = 0; index < 3; ++index) {
    const Tile tile = assembler.TakeTile(index).value();
    EXPECT_EQ(tile.tokens, (TokenRange{index * 4, std::min<int64_t>(10, index * 4 + 4)}));
    EXPECT_EQ(tile.buffer->size(), size_t(tile.tokens.size()) * kRow * 6);
    EXPECT_TRUE(Validate(tile.view).ok());
    for (int32_t layer = 0; layer < 3; ++layer) {
      for (Component c : kComponents) {
        for (int64_t t = 0; t < tile.tokens.size(); ++t) {
          const std::span row(tile.view.Row(layer, c, t), kRow);
          EXPECT_THAT(row, Each(std::byte(layer * 64 + int(c) * 16 + tile.tokens.begin + t)));
        }
      }
    }
  }
}

TEST_F(TileAssemblerTest, ChunksMayComeInSlicesOfAnySize) {
  std::vector<uint8_t> bytes(3 * 10 * kRow);
  std::iota(bytes.begin(), bytes.end(), 0);
  const auto all = std::as_bytes(std::span(bytes));
  TileAssembler whole = Make();
  TileAssembler sliced = Make();
  const std::vector<std::span<const std::byte>> slices = {
      all.first(1), all.subspan(1, 0), all.subspan(1, 99), all.subspan(100, 300), all.subspan(400)};
  for (Component c : kComponents) {
    ASSERT_TRUE(whole.Add({{0, 3}, c, {0, 10}}, all).ok());
    ASSERT_TRUE(sliced.Add({{0, 3}, c, {0, 10}}, slices).ok());
  }
  for (int64_t index = 0; index < 3; ++index) {
    const Tile a = whole.TakeTile(index).value();
    const Tile b = sliced.TakeTile(index).value();
    EXPECT_TRUE(std::ranges::equal(std::span(a.buffer->data(), a.buffer->size()),
                                   std::span(b.buffer->data(), b.buffer->size())));
  }
}

TEST_F(TileAssemblerTest, BytesThatFailTheCallersCheckNeverCame) {
  TileAssembler assembler = Make();
  const std::vector<std::byte> bytes(3 * 4 * kRow, std::byte{7});
  const std::span<const std::byte> slices[] = {bytes};
  size_t copied = 0;
  const auto copy = [&copied](std::byte* to, std::span<const std::byte> from) {
    std::copy(from.begin(), from.end(), to);
    copied += from.size();
  };
  const auto bad = [] { return absl::DataLossError("not these"); };
  EXPECT_THAT(assembler.Add({{0, 3}, kKey, {0, 4}}, slices, copy, bad),
              IsError(absl::StatusCode::kDataLoss, "not these"));
  EXPECT_EQ(copied, bytes.size());
  EXPECT_THAT(Add(assembler, {{0, 3}, kValue, {0, 4}}).value(), IsEmpty());
  EXPECT_THAT(Add(assembler, {{0, 3}, kKey, {0, 4}}, 9).value(), ElementsAre(0));
  EXPECT_EQ(assembler.TakeTile(0).value().view.Row(0, kKey, 0)[0], std::byte{9});
}

TEST_F(TileAssemblerTest, WrongByteCountsAreNamed) {
  TileAssembler assembler = Make();
  const std::vector<std::byte> bytes(4 * kRow);
  const std::span<const std::byte> all(bytes);
  EXPECT_THAT(assembler.Add({{0, 1}, kKey, {0, 4}}, all.first(63)),
              IsError(kInvalidArgument, "chunk bytes: expected 64 for its ranges, got 63"));
  EXPECT_THAT(assembler.Add({{0, 2}, kKey, {0, 4}}, all),
              IsError(kInvalidArgument, "chunk bytes: expected 128 for its ranges, got 64"));
  EXPECT_THAT(assembler.Add({{0, 1}, kKey, {0, 4}}, std::span<const std::byte>()),
              IsError(kInvalidArgument, "got 0"));
  EXPECT_EQ(assembler.open_bytes(), 0u);
}

TEST_F(TileAssemblerTest, RangesThatAreEmptyReversedOrOutsideAreNamed) {
  TileAssembler assembler = Make();
  for (LayerRange layers : {LayerRange{1, 1}, {2, 1}, {-1, 1}, {0, 4}, {3, 4}}) {
    EXPECT_THAT(assembler.Add({layers, kKey, {0, 4}}, std::span<const std::byte>()),
                IsError(kInvalidArgument, "layer range: expected 0 <= begin < end <= 3"));
  }
  for (TokenRange tokens : {TokenRange{4, 4}, {5, 4}, {-1, 4}, {0, 11}, {10, 11}}) {
    EXPECT_THAT(assembler.Add({{0, 1}, kKey, tokens}, std::span<const std::byte>()),
                IsError(kInvalidArgument, "token range: expected 0 <= begin < end <= 10"));
  }
  EXPECT_EQ(assembler.open_bytes(), 0u);
}

TEST_F(TileAssemblerTest, DuplicatesAreToldFromOverlapsAndChangeNothing) {
  TileAssembler assembler = Make();
  ASSERT_TRUE(Add(assembler, {{0, 2}, kKey, {2, 6}}, 7).ok());
  EXPECT_THAT(Add(assembler, {{0, 2}, kKey, {2, 6}}, 9),
              IsError(kInvalidArgument, "duplicate chunk: layers [0, 2), key, tokens [2, 6)"));
  EXPECT_THAT(Add(assembler, {{1, 3}, kKey, {5, 9}}, 9),
              IsError(kInvalidArgument,
                      "overlapping chunk: layers [1, 3), key, tokens [5, 9): "
                      "expected cells not sent before, got layer 1, key, token 5"));
  EXPECT_THAT(Add(assembler, {{0, 1}, kKey, {0, 4}}, 9),
              IsError(kInvalidArgument, "got layer 0, key, token 2 again"));
  EXPECT_TRUE(Add(assembler, {{0, 2}, kValue, {2, 6}}, 7).ok()) << "the other component";
  // The refused chunk's bytes are nowhere: its cells are still missing, its neighbours keep theirs.
  EXPECT_TRUE(Add(assembler, {{2, 3}, kKey, {5, 9}}, 7).ok());
  EXPECT_TRUE(Add(assembler, {{0, 2}, kKey, {6, 10}}, 7).ok());
  EXPECT_TRUE(Add(assembler, {{2, 3}, kKey, {4, 5}}, 7).ok());
  EXPECT_TRUE(Add(assembler, {{0, 2}, kValue, {6, 8}}, 7).ok());
  EXPECT_THAT(Add(assembler, {{2, 3}, kValue, {4, 8}}, 7).value(), ElementsAre(1));
  const Tile tile = assembler.TakeTile(1).value();
  EXPECT_THAT(std::span(tile.buffer->data(), tile.buffer->size()), Each(std::byte{7}));
}

TEST_F(TileAssemblerTest, CellsOfTilesAlreadyCompleteOrTakenAreDuplicatesToo) {
  TileAssembler assembler = Make();
  for (Component c : kComponents) ASSERT_TRUE(Add(assembler, {{0, 3}, c, {0, 4}}).ok());
  EXPECT_THAT(Add(assembler, {{1, 2}, kKey, {1, 2}}), IsError(kInvalidArgument, "duplicate chunk"));
  ASSERT_TRUE(assembler.TakeTile(0).ok());
  EXPECT_THAT(Add(assembler, {{0, 3}, kKey, {0, 4}}), IsError(kInvalidArgument, "duplicate chunk"));
  EXPECT_THAT(Add(assembler, {{0, 3}, kKey, {3, 5}}),
              IsError(kInvalidArgument, "overlapping chunk"));
  EXPECT_EQ(assembler.open_bytes(), 0u);
}

TEST_F(TileAssemblerTest, FinishNamesTheFirstCellThatNeverCame) {
  TileAssembler assembler = Make();
  EXPECT_THAT(assembler.Finish(),
              IsError(kInvalidArgument, "missing: layer 0, key, token 0 never came"));
  ASSERT_TRUE(Add(assembler, {{0, 3}, kKey, {0, 10}}).ok());
  ASSERT_TRUE(Add(assembler, {{0, 1}, kValue, {0, 10}}).ok());
  ASSERT_TRUE(Add(assembler, {{1, 3}, kValue, {0, 5}}).ok());
  ASSERT_TRUE(Add(assembler, {{1, 3}, kValue, {7, 10}}).ok());
  EXPECT_THAT(assembler.Finish(), IsError(kInvalidArgument, "missing: layer 1, value, token 5"));
}

TEST_F(TileAssemblerTest, OpenTilesStayWithinTheLimitAndTheRefusedChunkMayComeAgain) {
  TileAssembler::Options options = SmallOptions();
  options.max_open_bytes = 2 * 384;
  TileAssembler assembler = Make(options);
  EXPECT_THAT(Add(assembler, {{0, 1}, kKey, {0, 10}}),
              IsError(kResourceExhausted, "max_open_bytes: expected at most 768 B"));
  EXPECT_EQ(assembler.open_bytes(), 0u);
  EXPECT_EQ(pool_->bytes_in_use(), 0u);
  for (Component c : kComponents) ASSERT_TRUE(Add(assembler, {{0, 3}, c, {0, 8}}).ok());
  EXPECT_EQ(assembler.open_bytes(), 768u);
  EXPECT_THAT(Add(assembler, {{0, 1}, kKey, {8, 10}}),
              IsError(kResourceExhausted, "max_open_bytes"));
  ASSERT_TRUE(assembler.TakeTile(1).ok());
  EXPECT_EQ(assembler.open_bytes(), 384u);
  EXPECT_TRUE(Add(assembler, {{0, 1}, kKey, {8, 10}}).ok());
}

TEST_F(TileAssemblerTest, APoolWithoutRoomLeavesTheAssemblerAsItWas) {
  pool_ = BufferPool::Create(500);
  TileAssembler assembler = Make();
  EXPECT_THAT(Add(assembler, {{0, 1}, kKey, {0, 10}}), IsError(kResourceExhausted, "buffer pool"));
  EXPECT_EQ(assembler.open_bytes(), 0u);
  EXPECT_EQ(pool_->bytes_in_use(), 0u);
  EXPECT_TRUE(Add(assembler, {{0, 1}, kKey, {0, 4}}).ok());
}

TEST_F(TileAssemblerTest, TilesAreHandedOverOnceAndOnlyWhole) {
  TileAssembler assembler = Make();
  EXPECT_THAT(assembler.TakeTile(0), IsError(kFailedPrecondition, "incomplete"));
  EXPECT_THAT(assembler.TakeTile(3), IsError(kOutOfRange, "expected 0 <= index < 3, got 3"));
  EXPECT_THAT(assembler.TakeTile(-1), IsError(kOutOfRange, "got -1"));
  for (Component c : kComponents) ASSERT_TRUE(Add(assembler, {{0, 3}, c, {0, 4}}).ok());
  EXPECT_TRUE(assembler.TakeTile(0).ok());
  EXPECT_THAT(assembler.TakeTile(0), IsError(kFailedPrecondition, "was taken"));
}

TEST_F(TileAssemblerTest, BuffersGoBackToThePoolWhenTheAssemblerIsDropped) {
  {
    TileAssembler assembler = Make();
    ASSERT_TRUE(Add(assembler, {{0, 1}, kKey, {0, 10}}).ok());
    EXPECT_EQ(pool_->bytes_in_use(), 960u);
  }
  EXPECT_EQ(pool_->bytes_in_use(), 0u);
}

TEST_F(TileAssemblerTest, TilesMayBeginAtALaterToken) {
  TileAssembler::Options options = SmallOptions();
  options.first_token = 3;
  TileAssembler assembler = Make(options);
  EXPECT_EQ(assembler.tile_count(), 2);
  EXPECT_THAT(Add(assembler, {{0, 3}, kKey, {2, 10}}).status(),
              IsError(kInvalidArgument, "token range: expected 3 <= begin"));
  EXPECT_THAT(Add(assembler, {{0, 3}, kKey, {3, 10}}).value(), IsEmpty());
  EXPECT_THAT(Add(assembler, {{0, 3}, kValue, {3, 7}}).value(), ElementsAre(0));
  EXPECT_THAT(Add(assembler, {{0, 3}, kValue, {7, 10}}).value(), ElementsAre(1));
  EXPECT_EQ(assembler.TakeTile(1)->tokens, (TokenRange{7, 10}));
  EXPECT_TRUE(assembler.Finish().ok());
}

TEST_F(TileAssemblerTest, Fp8TilesCarryTheirScales) {
  TileAssembler::Options options = SmallOptions();
  options.dtype = DType::kF8E4M3;
  options.head_dim = 8;
  options.scales.assign(6, {0.5f});
  options.scales[5] = {0.25f, 4.0f};
  TileAssembler assembler = Make(options);
  for (Component c : kComponents) ASSERT_TRUE(Add(assembler, {{0, 3}, c, {0, 4}}, 0x38).ok());
  const Tile tile = assembler.TakeTile(0).value();
  EXPECT_TRUE(Validate(tile.view).ok());
  float row[16];
  ReadRows(tile.view, 2, kValue, {3, 4}, row);
  EXPECT_EQ(row[0], 0.25f);
  EXPECT_EQ(row[8], 4.0f);
}

TEST_F(TileAssemblerTest, OptionsThatCannotWorkAreRefusedByName) {
  const auto refuse = [&](auto change, absl::StatusCode code, const char* text) {
    TileAssembler::Options options = SmallOptions();
    change(options);
    EXPECT_THAT(TileAssembler::Create(options, pool_), IsError(code, text));
  };
  using O = TileAssembler::Options;
  refuse([](O& o) { o.layers = 0; }, kInvalidArgument, "layers: expected at least 1, got 0");
  refuse([](O& o) { o.kv_heads = -2; }, kInvalidArgument, "kv_heads");
  refuse([](O& o) { o.head_dim = 0; }, kInvalidArgument, "head_dim");
  refuse([](O& o) { o.tokens = 0; }, kInvalidArgument, "tokens");
  refuse([](O& o) { o.tile_tokens = 0; }, kInvalidArgument, "tile_tokens");
  refuse([](O& o) { o.tokens = int64_t{1} << 60; }, kInvalidArgument, "fit 63 bits");
  refuse([](O& o) { o.dtype = DType::kF8E4M3; }, kInvalidArgument, "scales: expected 6 entries");
  refuse([](O& o) { o.scales.assign(6, {1.0f}); }, kInvalidArgument, "scales: expected 0 entries");
  refuse(
      [](O& o) {
        o.dtype = DType::kF8E4M3;
        o.scales.assign(6, {1.0f});
        o.scales[4] = {0.0f};
      },
      kInvalidArgument, "scales[4][0]: expected finite and above 0");
  refuse([](O& o) { o.max_open_bytes = 383; }, kResourceExhausted,
         "max_open_bytes: expected at least one tile of 384 B, got 383 B");
}

}  // namespace
}  // namespace kvbridge::kv
