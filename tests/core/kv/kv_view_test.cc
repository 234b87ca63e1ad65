#include "core/kv/kv_view.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/tensor/convert.h"
#include "tests/core/kv/status_matcher.h"

namespace kvbridge::kv {
namespace {

using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kOutOfRange;
using tensor::DType;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Distinct for up to 5 tokens, 3 heads and 4 dims in two layers, and below 256: exact in every
// type.
float ElementValue(int32_t layer, Component c, int64_t token, int32_t head, int32_t d) {
  return static_cast<float>((((layer * 2 + int(c)) * 5 + token) * 3 + head) * 4 + d);
}

// Strides, in elements, of one published layout of a pool with `pages` pages.
struct Layout {
  const char* name;
  int64_t component, page, token, head;
};

constexpr int32_t kHeads = 2, kDim = 2;
constexpr int64_t kPages = 2, kSlots = 2;

// Heads, slots and pages are all 2: no shape can tell these apart (B25, B26).
constexpr Layout kLayouts[] = {
    {"[2, pages, slots, heads, dim]", 16, 8, 4, 2},
    {"[2, pages, heads, slots, dim]", 16, 8, 2, 4},
    {"[pages, 2, slots, heads, dim]", 8, 16, 4, 2},
    {"[pages, 2, heads, slots, dim]", 8, 16, 2, 4},
    {"[pages, heads, slots, 2 x dim]", 2, 16, 4, 8},
    {"[pages, slots, heads, 2 x dim]", 2, 16, 8, 4},
    {"[2, heads, pages, slots, dim]", 16, 4, 2, 8},
};

KvView PoolView(std::vector<std::byte>& memory, const Layout& layout,
                std::span<const int32_t> pages, int64_t tokens) {
  KvView view{.dtype = DType::kBf16,
              .layers = 1,
              .kv_heads = kHeads,
              .head_dim = kDim,
              .tokens = tokens,
              .tokens_per_page = kSlots,
              .pages = pages,
              .planes = {}};
  for (int c = 0; c < 2; ++c) {
    view.planes.push_back({.base = memory.data() + c * layout.component * 2,
                           .page_stride = layout.page * 2,
                           .token_stride = layout.token * 2,
                           .head_stride = layout.head * 2});
  }
  return view;
}

KvView SmallView(std::vector<std::byte>& memory, DType dtype = DType::kBf16) {
  memory.assign(2 * 2 * 5 * 3 * 4 * ByteSize(dtype), std::byte{0});
  return DenseTileView(memory.data(), dtype, 2, 5, 3, 4);
}

TEST(KvViewTest, EveryPublishedLayoutReadsTheRightBytesWhereShapesCannotTellThemApart) {
  const int32_t pages[] = {1, 0};
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    std::vector<std::byte> memory(32 * 2);
    const KvView view = PoolView(memory, layout, pages, 4);
    ASSERT_TRUE(Validate(view).ok()) << Validate(view);
    ASSERT_TRUE(CheckWithin(view, memory).ok()) << CheckWithin(view, memory);
    for (Component c : kComponents) {
      for (int64_t token = 0; token < 4; ++token) {
        for (int32_t head = 0; head < kHeads; ++head) {
          for (int32_t d = 0; d < kDim; ++d) {
            // The layout's own arithmetic, on indices rather than through the view.
            const int64_t at = int(c) * layout.component + pages[token / kSlots] * layout.page +
                               token % kSlots * layout.token + head * layout.head + d;
            const uint16_t code = tensor::F32ToBf16(ElementValue(0, c, token, head, d));
            std::memcpy(memory.data() + at * 2, &code, 2);
          }
        }
      }
    }
    for (Component c : kComponents) {
      float rows[3][kHeads][kDim];
      ReadRows(view, 0, c, {1, 4}, &rows[0][0][0]);
      for (int64_t token = 1; token < 4; ++token) {
        for (int32_t head = 0; head < kHeads; ++head) {
          for (int32_t d = 0; d < kDim; ++d) {
            ASSERT_EQ(rows[token - 1][head][d], ElementValue(0, c, token, head, d))
                << Name(c) << " " << token << " " << head << " " << d;
          }
        }
      }
    }
  }
}

TEST(KvViewTest, WhatIsWrittenHeadByHeadIsReadBack) {
  for (DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (bool head_major : {false, true}) {
      std::vector<std::byte> memory(2 * 2 * 5 * 3 * 4 * ByteSize(dtype));
      std::byte* values = memory.data() + memory.size() / 2;
      const KvView view = head_major ? DenseHeadMajorView(memory.data(), values, dtype, 2, 5, 3, 4)
                                     : DenseTileView(memory.data(), dtype, 2, 5, 3, 4);
      ASSERT_TRUE(Validate(view).ok());
      ASSERT_TRUE(CheckWithin(view, memory).ok());
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (Component c : kComponents) {
          for (int64_t token = 0; token < 5; ++token) {
            for (int32_t head = 0; head < 3; ++head) {
              float head_values[4];
              for (int d = 0; d < 4; ++d) head_values[d] = ElementValue(layer, c, token, head, d);
              ASSERT_EQ(WriteHead(view, layer, c, token, head, head_values), 0u);
            }
          }
        }
      }
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (Component c : kComponents) {
          float rows[5 * 3 * 4];
          ReadRows(view, layer, c, {0, 5}, rows);
          for (int i = 0; i < 5 * 3 * 4; ++i) {
            ASSERT_EQ(rows[i], ElementValue(layer, c, i / 12, i / 4 % 3, i % 4));
          }
        }
      }
    }
  }
}

TEST(KvViewTest, WriteHeadCountsWhatDidNotFit) {
  std::vector<std::byte> memory;
  const KvView view = SmallView(memory, DType::kF16);
  const float values[] = {1e5f, 1, -1e5f, 2};
  EXPECT_EQ(WriteHead(view, 0, Component::kKey, 0, 0, values), 2u);
}

TEST(KvViewTest, Fp8ScalesApplyPerLayerOrPerHead) {
  std::vector<std::byte> memory;
  KvView view = SmallView(memory, DType::kF8E4M3);
  for (Plane& plane : view.planes) plane.scales = {0.5f};
  view.plane(1, Component::kValue).scales = {0.5f, 0.25f, 2.0f};
  ASSERT_TRUE(Validate(view).ok()) << Validate(view);
  std::memset(memory.data(), 0x38, memory.size());  // every code is 1.0
  float rows[12];
  ReadRows(view, 0, Component::kKey, {2, 3}, rows);
  for (float value : rows) EXPECT_EQ(value, 0.5f);
  ReadRows(view, 1, Component::kValue, {2, 3}, rows);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(rows[i], view.Scale(1, Component::kValue, i / 4));
  EXPECT_EQ(rows[11], 2.0f);

  const float values[] = {4, 4, 4, 4};
  WriteHead(view, 1, Component::kValue, 0, 2, values);
  EXPECT_EQ(tensor::F8E4M3ToF32(uint8_t(view.Row(1, Component::kValue, 0)[8])), 2.0f);
}

// B23: lost scales must not become 1.
TEST(KvViewTest, Fp8ScalesThatAreMissingOrNoScalesAreRefusedByName) {
  std::vector<std::byte> memory;
  KvView view = SmallView(memory, DType::kF8E4M3);
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument,
                                      "planes[layer 0, key].scales: expected 1 or 3 for f8_e4m3"));
  for (Plane& plane : view.planes) plane.scales = {1.0f};
  EXPECT_TRUE(Validate(view).ok());
  std::vector<float>& scales = view.plane(1, Component::kValue).scales;
  for (float bad : {0.0f, -0.02f, kNan, std::numeric_limits<float>::infinity()}) {
    scales = {1.0f, bad, 1.0f};
    EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "planes[layer 1, value].scales[1]"))
        << bad;
  }
  scales = {1.0f, 1.0f};
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "got 2"));
  KvView half = SmallView(memory, DType::kF16);
  half.plane(0, Component::kKey).scales = {1.0f};
  EXPECT_THAT(Validate(half), IsError(kInvalidArgument, "scales: expected none for f16"));
}

TEST(KvViewTest, CountsThatAreNotPositiveAreRefusedByName) {
  std::vector<std::byte> memory;
  const KvView good = SmallView(memory);
  ASSERT_TRUE(Validate(good).ok());
  KvView view = good;
  view.layers = 0;
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "layers: expected at least 1, got 0"));
  view = good;
  view.kv_heads = -1;
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "kv_heads"));
  view = good;
  view.head_dim = 0;
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "head_dim"));
  view = good;
  view.tokens = 0;
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "tokens"));
  view = good;
  view.planes.pop_back();
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "planes: expected 2 for each of 2 layers"));
  view = good;
  view.planes[3].base = nullptr;
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "planes[layer 1, value].base"));
}

TEST(KvViewTest, PageTablesMustCoverTheTokensAndListEachPageOnce) {
  std::vector<std::byte> memory(64);
  const Layout& layout = kLayouts[0];
  const auto validate = [&](std::vector<int32_t> pages, int64_t tokens) {
    return Validate(PoolView(memory, layout, pages, tokens));
  };
  EXPECT_TRUE(validate({1, 0}, 3).ok());
  EXPECT_TRUE(validate({1, -1}, 2).ok()) << "only pages in use count";
  EXPECT_THAT(validate({1}, 3), IsError(kInvalidArgument, "pages: expected 2 for 3 tokens, got 1"));
  EXPECT_THAT(validate({0, -1}, 3), IsError(kFailedPrecondition, "pages[1]: evicted"));
  EXPECT_THAT(validate({0, -2}, 3), IsError(kInvalidArgument, "pages[1]: expected 0 or more"));
  EXPECT_THAT(validate({5, 5}, 3), IsError(kInvalidArgument, "got page 5 twice"));

  const int32_t pages[] = {0, 1};
  KvView view = PoolView(memory, layout, pages, 3);
  view.tokens_per_page = 0;
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "pages: expected none"));
  view.tokens_per_page = -16;
  EXPECT_THAT(Validate(view), IsError(kInvalidArgument, "tokens_per_page"));
}

TEST(KvViewTest, StridesThatMakeElementsShareBytesAreRefused) {
  const int32_t pages[] = {0, 1};
  std::vector<std::byte> memory(64);
  const auto refuse = [&](auto change, const char* text) {
    KvView view = PoolView(memory, kLayouts[0], pages, 4);
    change(view.planes[1]);
    EXPECT_THAT(Validate(view), IsError(kInvalidArgument, text));
  };
  refuse([](Plane& p) { p.head_stride = 0; }, "planes[layer 0, value].head_stride");
  refuse([](Plane& p) { p.head_stride = 3; }, "head_stride: expected at least 4 bytes");
  refuse([](Plane& p) { p.token_stride = 4; }, "expected at least 8 bytes");  // a token per head
  refuse([](Plane& p) { p.token_stride = 6; }, "token_stride");
  refuse([](Plane& p) { p.page_stride = 8; }, "expected at least 16 bytes");  // a page per token
  refuse([](Plane& p) { p.page_stride = 0; }, "page_stride");
  refuse([](Plane& p) { p.page_stride = -12; }, "page_stride");
}

TEST(KvViewTest, StridesOfDimensionsOfOneDoNotMatter) {
  std::vector<std::byte> memory(64);
  KvView view = DenseTileView(memory.data(), DType::kBf16, 1, 1, 1, 4);
  for (Plane& plane : view.planes) plane.head_stride = plane.token_stride = 0;
  EXPECT_TRUE(Validate(view).ok()) << Validate(view);
  float row[4];
  ReadRows(view, 0, Component::kKey, {0, 1}, row);
}

TEST(KvViewTest, ViewsOutsideTheirBufferAreRefusedToTheByte) {
  std::vector<std::byte> memory;
  const KvView view = SmallView(memory);
  const std::span<const std::byte> all(memory);
  EXPECT_TRUE(CheckWithin(view, all).ok());
  EXPECT_THAT(CheckWithin(view, all.first(all.size() - 1)),
              IsError(kOutOfRange,
                      "planes[layer 1, value]: expected all bytes inside a buffer of "
                      "479 bytes, got some past its end"));
  EXPECT_THAT(CheckWithin(view, all.subspan(1)),
              IsError(kOutOfRange,
                      "planes[layer 0, key]: expected all bytes inside a buffer of "
                      "479 bytes, got some before its begin"));
  EXPECT_TRUE(CheckWithin(view, 1, Component::kValue, all.last(120)).ok());
  EXPECT_THAT(CheckWithin(view, 1, Component::kValue, all.last(119)),
              IsError(kOutOfRange, "before its begin"));
}

TEST(KvViewTest, BoundsCoverTheWholeLastPageAndBackwardStrides) {
  std::vector<std::byte> memory(64);
  const int32_t pages[] = {1};
  KvView view = PoolView(memory, kLayouts[0], pages, 1);
  view.planes.resize(1);
  const auto within = [&](size_t begin, size_t end) {
    return CheckWithin(view, 0, Component::kKey, std::span(memory).subspan(begin, end - begin))
        .ok();
  };
  EXPECT_TRUE(within(16, 32));
  EXPECT_FALSE(within(16, 31));
  EXPECT_FALSE(within(17, 32));
  view.planes[0].token_stride = -8;
  EXPECT_TRUE(within(8, 24));
  EXPECT_FALSE(within(9, 24));
  EXPECT_FALSE(within(8, 23));
}

TEST(KvViewTest, HostileStridesDoNotWrapTheBoundsCheck) {
  std::vector<std::byte> memory(64);
  const int32_t pages[] = {0, std::numeric_limits<int32_t>::max()};
  KvView view = PoolView(memory, kLayouts[0], pages, 4);
  for (int64_t stride : {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(),
                         int64_t{1} << 33, int64_t{1} << 62}) {
    for (Plane& plane : view.planes) plane.page_stride = stride;
    ASSERT_TRUE(Validate(view).ok()) << Validate(view);
    EXPECT_THAT(CheckWithin(view, memory), IsError(kOutOfRange, "planes[layer 0, key]")) << stride;
  }
}

TEST(KvViewTest, ZeroRowsZeroesItsTokensOnly) {
  for (bool head_major : {false, true}) {
    std::vector<std::byte> memory(2 * 2 * 5 * 3 * 4 * 4, std::byte{0x3f});
    const KvView view = head_major
                            ? DenseHeadMajorView(memory.data(), memory.data() + memory.size() / 2,
                                                 DType::kF32, 2, 5, 3, 4)
                            : DenseTileView(memory.data(), DType::kF32, 2, 5, 3, 4);
    ZeroRows(view, 1, Component::kKey, {1, 3});
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (Component c : kComponents) {
        float rows[5 * 12];
        ReadRows(view, layer, c, {0, 5}, rows);
        for (int i = 0; i < 5 * 12; ++i) {
          const bool zeroed = layer == 1 && c == Component::kKey && i / 12 >= 1 && i / 12 < 3;
          ASSERT_EQ(rows[i] == 0, zeroed) << layer << Name(c) << i;
        }
      }
    }
  }
}

// B14, B18: attention kernels read whole pages; what lies past the last token must be 0, not NaN.
TEST(KvViewTest, ZeroTailClearsTheSlotsPastTheLastTokenAndNothingElse) {
  constexpr int64_t kPageTokens = 16, kTokens = 17, kRow = 2 * 4 * 2;
  std::vector<std::byte> memory(2 * 3 * kPageTokens * kRow, std::byte{0xff});
  const int32_t pages[] = {2, 0};
  KvView view{.dtype = DType::kBf16,
              .layers = 1,
              .kv_heads = 2,
              .head_dim = 4,
              .tokens = kTokens,
              .tokens_per_page = kPageTokens,
              .pages = pages,
              .planes = {}};
  for (int c = 0; c < 2; ++c) {
    view.planes.push_back({.base = memory.data() + c * 3 * kPageTokens * kRow,
                           .page_stride = kPageTokens * kRow,
                           .token_stride = kRow,
                           .head_stride = kRow / 2});
  }
  ASSERT_TRUE(Validate(view).ok());
  ZeroTail(view);
  for (size_t i = 0; i < memory.size(); ++i) {
    const int64_t slot = i / kRow % (3 * kPageTokens);
    const bool tail = slot >= 1 && slot < kPageTokens;  // of page 0, which holds token 16 alone
    ASSERT_EQ(memory[i], tail ? std::byte{0} : std::byte{0xff}) << i;
  }
}

TEST(KvViewTest, ZeroTailLeavesFullPagesAndContiguousViewsAlone) {
  std::vector<std::byte> memory(64, std::byte{0xff});
  const int32_t pages[] = {0, 1};
  ZeroTail(PoolView(memory, kLayouts[0], pages, 4));
  ZeroTail(DenseTileView(memory.data(), DType::kBf16, 1, 3, 2, 2));
  EXPECT_THAT(memory, testing::Each(std::byte{0xff}));
}

}  // namespace
}  // namespace kvbridge::kv
