#include "core/memory/pool.h"

#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/kv/kv_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/memory/engine_layouts.h"
#include "tests/core/memory/registry_fixture.h"

namespace kvbridge::memory {
namespace {

using absl::StatusCode::kFailedPrecondition;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kNotFound;
using absl::StatusCode::kOutOfRange;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

class PoolTest : public RegistryTest {
 protected:
  // Writes as the engine does, reads through the pool, compares every element.
  void RoundTrip(const EngineLayout& layout, const PoolShape& shape, int64_t tokens,
                 std::vector<int32_t> pages) {
    const RegionGrant region = NewRegion(2 * base::kMiB);
    auto fd = registry_->ClaimFd(session_, region.ticket);
    ASSERT_TRUE(fd.ok()) << fd.status();
    const ClientMap engine(*fd, 2 * base::kMiB);
    WriteAsEngine(layout, shape, engine.bytes());
    const auto pool =
        registry_->RegisterPool("ana", session_, SpecOf(layout, shape, region.region_id));
    ASSERT_TRUE(pool.ok()) << pool.status();
    const auto pin = Pin(*pool);
    ASSERT_TRUE(pin.ok()) << pin.status();
    const auto view = pin->View(tokens, pages);
    ASSERT_TRUE(view.ok()) << view.status();
    std::vector<float> rows(static_cast<size_t>(tokens * view->row()));
    for (int32_t layer = 0; layer < shape.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        kv::ReadRows(*view, layer, c, {0, tokens}, rows.data());
        for (int64_t i = 0; i < std::ssize(rows); ++i) {
          const int64_t token = i / view->row();
          const int64_t head = i % view->row() / shape.dim;
          ASSERT_EQ(rows[i], ElementOf(layer, static_cast<int64_t>(c), pages[token / shape.slots],
                                       token % shape.slots, head, i % shape.dim))
              << "layer " << layer << " " << Name(c) << " token " << token << " head " << head;
        }
      }
    }
    ASSERT_TRUE(registry_->Unregister("ana", session_, region.region_id).ok());
  }

  absl::Status Register(const PoolSpec& spec) {
    return registry_->RegisterPool("ana", session_, spec).status();
  }
};

TEST_F(PoolTest, RecordedDescriptorsOfEveryEngineAreWhatItsTensorsSay) {
  const PoolShape shape;
  for (const EngineLayout& layout : kEngineLayouts) {
    SCOPED_TRACE(layout.engine);
    const PoolSpec spec = SpecOf(layout, shape, "");
    EXPECT_EQ(spec.planes[0].page_stride, layout.page_stride);
    EXPECT_EQ(spec.planes[0].token_stride, layout.token_stride);
    EXPECT_EQ(spec.planes[0].head_stride, layout.head_stride);
    EXPECT_EQ(spec.planes[1].base_offset, static_cast<uint64_t>(layout.value_offset));
    EXPECT_EQ(spec.planes[2].base_offset, static_cast<uint64_t>(layout.layer_offset));
  }
}

TEST_F(PoolTest, EveryEnginesLayoutReadsTheRightValues) {
  for (const EngineLayout& layout : kEngineLayouts) {
    SCOPED_TRACE(layout.engine);
    RoundTrip(layout, PoolShape(), /*tokens=*/50, {4, 0, 5, 2});
  }
}

TEST_F(PoolTest, ShapesThatCannotBeToldApartReadTheRightValues) {
  struct Case {
    const char* what;
    PoolShape shape;
    int64_t tokens;
    std::vector<int32_t> pages;
  };
  const Case cases[] = {
      {"heads == slots", {2, 6, 8, 8, 16}, 33, {3, 1, 5, 0, 2}},
      {"two pages, slots, heads, layers", {2, 2, 2, 2, 2}, 3, {1, 0}},
      {"one page", {2, 1, 16, 4, 8}, 16, {0}},
      {"one token", {2, 4, 16, 4, 8}, 1, {3}},
      {"one slot", {1, 5, 1, 4, 8}, 4, {4, 2, 0, 1}},
      {"one of everything", {1, 1, 1, 1, 1}, 1, {0}},
      {"last page full", {1, 3, 4, 2, 8}, 12, {2, 0, 1}},
      {"last page partial", {1, 3, 4, 2, 8}, 9, {2, 0, 1}},
  };
  for (const EngineLayout& layout : kEngineLayouts) {
    for (const Case& c : cases) {
      SCOPED_TRACE(absl::StrCat(layout.engine, ": ", c.what));
      RoundTrip(layout, c.shape, c.tokens, c.pages);
    }
  }
}

TEST_F(PoolTest, OffsetIsAddedOnce) {
  const RegionGrant region = NewRegion();
  auto fd = registry_->ClaimFd(session_, region.ticket);
  ASSERT_TRUE(fd.ok());
  const ClientMap engine(*fd, kRegionBytes);
  PoolSpec spec = SmallSpec(region.region_id);
  // K at 4096: were the offset added to the region or the page twice, 8192 would be read.
  spec.planes[0].base_offset = 4096;
  const uint16_t bits = tensor::F32ToBf16(3, nullptr);
  std::memcpy(engine.bytes().data() + 4096 + 2 * 128, &bits, sizeof(bits));
  const auto pool = registry_->RegisterPool("ana", session_, spec);
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto pin = Pin(*pool);
  const int32_t pages[] = {2};
  float row[8] = {};
  kv::ReadRows(*pin->View(1, pages), 0, kv::Component::kKey, {0, 1}, row);
  EXPECT_EQ(row[0], 3);
}

TEST_F(PoolTest, APoolThatFillsItsRegionToTheLastByteFits) {
  const RegionGrant region = NewRegion();
  PoolSpec spec = SmallSpec(region.region_id, kRegionBytes / 128);
  EXPECT_TRUE(Register(spec).ok());
  ++spec.pages;
  EXPECT_EQ(Register(spec).code(), kOutOfRange);
}

TEST_F(PoolTest, WrapAroundOffsetsAndStridesAreRefused) {
  const RegionGrant region = NewRegion();
  const PoolSpec good = SmallSpec(region.region_id);
  for (const uint64_t offset : {kRegionBytes, uint64_t{0} - 2, uint64_t{0} - kRegionBytes,
                                uint64_t{1} << 63, kRegionBytes - 2}) {
    PoolSpec spec = good;
    spec.planes[1].base_offset = offset;
    const absl::Status status = Register(spec);
    EXPECT_EQ(status.code(), kOutOfRange) << offset << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("planes[layer 0, value]"));
  }
  for (const int64_t stride : {kMax - 1, kMin, kMax / 2 - 1, int64_t{-128}, int64_t{1} << 40}) {
    for (int64_t PoolPlane::*field :
         {&PoolPlane::page_stride, &PoolPlane::token_stride, &PoolPlane::head_stride}) {
      PoolSpec spec = good;
      spec.planes[0].*field = stride;
      const absl::Status status = Register(spec);
      EXPECT_TRUE(status.code() == kOutOfRange || status.code() == kInvalidArgument)
          << stride << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("planes[layer 0, key]"));
    }
  }
}

TEST_F(PoolTest, BadSpecsNameTheFieldAndLeaveNothing) {
  const RegionGrant region = NewRegion();
  struct Case {
    absl::StatusCode code;
    const char* message;
    std::function<void(PoolSpec&)> spoil;
  };
  const Case cases[] = {
      {kInvalidArgument, "tokens_per_page: expected at least 1, got 0",
       [](PoolSpec& s) { s.tokens_per_page = 0; }},
      {kInvalidArgument, "pages: expected at least 1, got -3", [](PoolSpec& s) { s.pages = -3; }},
      {kInvalidArgument, "planes: expected 2 for each of 1 layers, got 1",
       [](PoolSpec& s) { s.planes.pop_back(); }},
      {kInvalidArgument, "planes: expected 2 for each of 2048 layers, got 2",
       [](PoolSpec& s) { s.model.geometry.layers = 2048; }},
      {kInvalidArgument, "layers: expected at most 2048, got 2000000000",
       [](PoolSpec& s) { s.model.geometry.layers = 2'000'000'000; }},
      {kInvalidArgument, "kv_heads: expected at least 1, got 0",
       [](PoolSpec& s) { s.model.geometry.kv_heads = 0; }},
      {kInvalidArgument, "head_dim: expected at least 1, got -1",
       [](PoolSpec& s) { s.model.geometry.head_dim = -1; }},
      {kNotFound, "planes[layer 0, value].region_id: not found",
       [](PoolSpec& s) { s.planes[1].region_id = "no such region"; }},
      {kInvalidArgument, "planes[layer 0, key].base_offset: expected a multiple of 2 for bf16",
       [](PoolSpec& s) { s.planes[0].base_offset = 1; }},
      {kInvalidArgument, "planes[layer 0, value].token_stride: expected a multiple of 2 for bf16",
       [](PoolSpec& s) { s.planes[1].token_stride = 17; }},
      {kInvalidArgument, "planes[layer 0, key].head_stride: expected at least 8 bytes apart",
       [](PoolSpec& s) { s.planes[0].head_stride = 6; }},
      {kInvalidArgument, "planes[layer 0, key].scales: expected none for bf16, got 1",
       [](PoolSpec& s) { s.planes[0].scales = {1.0f}; }},
      {kInvalidArgument, "planes[layer 0, key].scales: expected 1 or 2 for f8_e4m3, got 0",
       [](PoolSpec& s) { s.model.geometry.dtype = tensor::DType::kF8E4M3; }},
  };
  const MemoryUse before = registry_->use();
  for (const Case& c : cases) {
    PoolSpec spec = SmallSpec(region.region_id);
    c.spoil(spec);
    const absl::Status status = Register(spec);
    EXPECT_EQ(status.code(), c.code) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr(region.region_id)));
  }
  EXPECT_EQ(registry_->use().pools, before.pools);
}

TEST_F(PoolTest, APageTableIsCheckedEntryByEntry) {
  const PoolGrant pool = NewPool(NewRegion().region_id);
  const auto pin = Pin(pool);
  ASSERT_TRUE(pin.ok()) << pin.status();
  struct Case {
    absl::StatusCode code;
    const char* message;
    int64_t tokens;
    std::vector<int32_t> pages;
  };
  const Case cases[] = {
      {kInvalidArgument, "tokens: expected at least 1, got 0", 0, {1}},
      {kInvalidArgument, "tokens: expected at least 1, got -9", -9, {1}},
      {kInvalidArgument, "pages: expected 2 for 5 tokens, got 1", 5, {1}},
      {kInvalidArgument, "pages: expected 2305843009213693952 for", kMax, {1}},
      {kFailedPrecondition, "pages[1]: evicted", 12, {1, -1, 2}},
      {kInvalidArgument, "pages[0]: expected 0 to 7, got -2", 4, {-2}},
      {kInvalidArgument, "pages[2]: expected 0 to 7, got 8", 9, {0, 7, 8}},
      {kInvalidArgument, "pages[2]: expected distinct pages, got page 3 again", 9, {3, 1, 3}},
  };
  for (const Case& c : cases) {
    const absl::Status status = pin->View(c.tokens, c.pages).status();
    EXPECT_EQ(status.code(), c.code) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST_F(PoolTest, ALongerPageTableIsReadAsFarAsItsTokensGo) {
  const PoolGrant pool = NewPool(NewRegion().region_id);
  const std::vector<int32_t> pages = {3, 1, -1, 99};
  const auto view = Pin(pool)->View(8, pages);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->pages.size(), 2u);
  EXPECT_TRUE(kv::Validate(*view).ok());
}

TEST_F(PoolTest, OnlyAPoolOfWritableRegionsMayBeATarget) {
  const RegionGrant sources = NewRegion(kRegionBytes, /*writable=*/false);
  const RegionGrant targets = NewRegion(kRegionBytes, /*writable=*/true);
  PoolSpec mixed = SmallSpec(targets.region_id);
  mixed.planes[1].region_id = sources.region_id;
  const auto pool = registry_->RegisterPool("ana", session_, mixed);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_FALSE(Pin(*pool)->writable());
  EXPECT_FALSE(Pin(NewPool(sources.region_id))->writable());
  EXPECT_TRUE(Pin(NewPool(targets.region_id))->writable());
}

TEST_F(PoolTest, PlanesOfAWrittenPoolShareNoByte) {
  const RegionGrant writable = NewRegion();
  const RegionGrant sources = NewRegion(kRegionBytes, /*writable=*/false);
  struct Case {
    const char* what;
    uint64_t value_offset;
    bool apart;
  };
  // A page has 4 slots of 2 heads of 8 bytes; 128 bytes from page to page leave room for two
  // planes.
  for (const Case& c : {Case{"the same", 0, false}, Case{"one head on", 8, false},
                        Case{"one slot on", 16, false}, Case{"into the last head", 62, false},
                        Case{"right behind", 64, true}, Case{"a page on", 128, false},
                        Case{"behind, a page on", 192, true}, Case{"the last page", 7 * 128, false},
                        Case{"past the pool", 8 * 128, true}, Case{"out of line", 66, false}}) {
    SCOPED_TRACE(c.what);
    PoolSpec spec = SmallSpec(writable.region_id);
    spec.planes[1].base_offset = c.value_offset;
    const absl::Status status = Register(spec);
    EXPECT_EQ(status.code(), c.apart ? absl::StatusCode::kOk : kInvalidArgument) << status;
    for (PoolPlane& plane : spec.planes) plane.region_id = sources.region_id;
    EXPECT_TRUE(Register(spec).ok()) << "layers that share a cache may be sources";
  }
  PoolSpec odd = SmallSpec(writable.region_id);
  odd.planes[1].page_stride = 256;
  EXPECT_THAT(std::string(Register(odd).message()), HasSubstr("different strides in between"));
}

TEST_F(PoolTest, BackwardStridesAreDescribedLikeAnyOther) {
  const RegionGrant region = NewRegion();
  PoolSpec spec = SmallSpec(region.region_id);
  for (PoolPlane& plane : spec.planes) {
    plane.base_offset += 7 * 128;
    plane.page_stride = -128;
  }
  EXPECT_TRUE(Register(spec).ok()) << Register(spec);
  spec.planes[1].base_offset -= 16;
  EXPECT_EQ(Register(spec).code(), kInvalidArgument);
}

TEST_F(PoolTest, APinKnowsTheModel) {
  const PoolGrant pool = NewPool(NewRegion().region_id);
  EXPECT_EQ(Pin(pool)->model().identity.model_id, "small");
}

}  // namespace
}  // namespace kvbridge::memory
