// Every plane gives the same: the bytes, the tokens it leaves alone, and the answer when it can't.
//
// A plane here is where the source lies, where the target lies, and who maps: kvbridged over real
// gRPC, or the engine in this process. What the engine makes of dense caches is the reference.
#include <algorithm>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/engine/local_transfer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/region_client.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {
namespace {

using memory::EngineLayout;
using memory::kEngineLayouts;
using ::testing::HasSubstr;

enum class Side { kInline, kPool, kStreamedPool };

struct Plane {
  const char* name;
  bool in_process = false;
  bool named = false;  // pools lie in segments that the server opens by name
  Side source = Side::kInline;
  Side target = Side::kInline;
};

constexpr Plane kPlanes[] = {
    {.name = "Inline"},
    {.name = "Region", .source = Side::kPool, .target = Side::kPool},
    {.name = "RegionStreamed", .source = Side::kStreamedPool, .target = Side::kPool},
    {.name = "PoolToInline", .source = Side::kPool},
    {.name = "StreamedPoolToInline", .source = Side::kStreamedPool},
    {.name = "InlineToPool", .target = Side::kPool},
    {.name = "Named", .named = true, .source = Side::kPool, .target = Side::kPool},
    {.name = "InProcessDense", .in_process = true},
    {.name = "InProcessPaged", .in_process = true, .source = Side::kPool, .target = Side::kPool},
};
void PrintTo(const Plane& plane, std::ostream* out) { *out << plane.name; }

// The bytes of a view, token after token, whatever its strides.
std::string BytesOf(const kv::KvView& view, kv::TokenRange tokens) {
  std::string bytes;
  const size_t head_bytes = view.head_dim * tensor::ByteSize(view.dtype);
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    for (int32_t layer = 0; layer < view.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        for (int32_t head = 0; head < view.kv_heads; ++head) {
          const std::byte* at = view.Row(layer, c, token) + head * view.plane(layer, c).head_stride;
          bytes.append(reinterpret_cast<const char*>(at), head_bytes);
        }
      }
    }
  }
  return bytes;
}

void CopyTokens(const kv::KvView& from, const kv::KvView& to, kv::TokenRange tokens) {
  std::string bytes = BytesOf(from, tokens);
  const char* next = bytes.data();
  const size_t head_bytes = from.head_dim * tensor::ByteSize(from.dtype);
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    for (int32_t layer = 0; layer < from.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        for (int32_t head = 0; head < from.kv_heads; ++head, next += head_bytes) {
          std::byte* at = to.Row(layer, c, token) + head * to.plane(layer, c).head_stride;
          std::copy_n(reinterpret_cast<const std::byte*>(next), head_bytes, at);
        }
      }
    }
  }
}

// What there is to map, and how it is asked for.
struct Request {
  Request(const ServerHarness& harness, int64_t tokens)
      : header(harness.Header(tokens)), tokens(tokens) {
    model::KvGeometry geometry = harness.mapper().source.geometry;
    source = std::make_unique<DenseCache>(geometry, tokens);
    source->Randomise(static_cast<uint32_t>(tokens));
  }
  int64_t first_token() const { return header.first_token(); }

  v1::TransferHeader header;
  int64_t tokens;
  std::unique_ptr<DenseCache> source;
  const EngineLayout* source_layout = &kEngineLayouts[0];
  const EngineLayout* target_layout = &kEngineLayouts[3];
  int32_t tokens_per_page = 16;
};

// What became of it.
struct Result {
  v1::Decision decision;
  bool paged = false;
  std::string target;     // of the selection's tokens; paged: of all slots of its pages
  std::string strangers;  // of pages that the request does not name
};

class PlaneTest : public ::testing::TestWithParam<Plane> {
 protected:
  static void SetUpTestSuite() {
    harness_ = std::make_unique<ServerHarness>();
    client_ = std::make_unique<RegionClient>(harness_.get());
    naming_client_ = std::make_unique<RegionClient>(harness_.get());
    naming_client_->NameRegions();
  }
  static void TearDownTestSuite() {
    naming_client_.reset();
    client_.reset();
    harness_.reset();
  }
  void TearDown() override { EXPECT_TRUE(harness_->Quiet()); }

  static int32_t PageCount(const Request& request) {
    return static_cast<int32_t>((request.tokens - 1) / request.tokens_per_page + 1);
  }
  // Physical pages of the selection: every other one of the pool, the later half first.
  static std::vector<int32_t> Pages(const Request& request) {
    std::vector<int32_t> pages(PageCount(request));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(2 * i);
    std::rotate(pages.begin(), pages.begin() + pages.size() / 2, pages.end());
    return pages;
  }

  static RegionClient& ClientOf(const Plane& plane) {
    return plane.named ? *naming_client_ : *client_;
  }
  // A pool of twice the pages that the request needs, for this plane.
  static std::unique_ptr<PagedCache> MakePool(const Plane& plane, const Request& request,
                                              bool target) {
    const auto& model = target ? harness_->mapper().target : harness_->mapper().source;
    const EngineLayout& layout = *(target ? request.target_layout : request.source_layout);
    return ClientOf(plane).MakePool(model, layout, 2 * PageCount(request), request.tokens_per_page,
                                    target);
  }

  static void ReadTarget(const Request& request, const PagedCache& cache, Result* result) {
    const std::vector<int32_t> pages = Pages(request);
    const int64_t slots = int64_t{PageCount(request)} * request.tokens_per_page;
    result->paged = true;
    result->target = BytesOf(cache.View(slots, pages), {0, slots});
    std::vector<int32_t> others;
    for (int32_t page = 1; page < 2 * PageCount(request); page += 2) others.push_back(page);
    result->strangers = BytesOf(cache.View(slots, others), {0, slots});
  }

  static Result Run(const Plane& plane, const Request& request) {
    const std::vector<int32_t> pages = Pages(request);
    v1::TransferHeader header = request.header;
    std::unique_ptr<PagedCache> source;
    std::unique_ptr<PagedCache> target;
    if (plane.source != Side::kInline) {
      source = MakePool(plane, request, /*target=*/false);
      CopyTokens(request.source->View(), source->View(request.tokens, pages), {0, request.tokens});
      source->Locate(pages, header.mutable_source_selection());
    }
    if (plane.target != Side::kInline) {
      target = MakePool(plane, request, /*target=*/true);
      target->Locate(pages, header.mutable_target_selection());
    }
    Result result;
    if (plane.in_process) {
      DenseCache dense(harness_->mapper().target.geometry, request.tokens);
      result.decision = ToProto(harness_->MapInProcess(
          request.header,
          source != nullptr ? source->View(request.tokens, pages) : request.source->View(),
          target != nullptr ? target->View(request.tokens, pages) : dense.View()));
      result.target = BytesOf(dense.View(), {0, request.tokens});
    } else {
      const CallResult got = harness_->Send(Messages(plane, request, std::move(header)));
      EXPECT_TRUE(got.status.ok()) << got.status.error_message();
      EXPECT_EQ(got.completed, 1);
      result.decision = got.decision;
      result.target = BytesOf(got.target->View(), {0, request.tokens});
    }
    if (target != nullptr) ReadTarget(request, *target, &result);
    for (const auto* cache : {source.get(), target.get()}) {
      if (cache == nullptr) continue;
      EXPECT_FALSE(ClientOf(plane).Unregister(cache->region.id).draining());
    }
    return result;
  }

  static std::vector<v1::TransferRequest> Messages(const Plane& plane, const Request& request,
                                                   v1::TransferHeader header) {
    std::vector<v1::TransferRequest> messages(1);
    header.set_streamed_source(plane.source == Side::kStreamedPool);
    *messages[0].mutable_header() = std::move(header);
    if (plane.source == Side::kInline) {
      for (v1::TransferChunk& chunk : harness_->Chunks(*request.source)) {
        if (chunk.token_begin() < request.first_token()) continue;
        *messages.emplace_back().mutable_chunk() = std::move(chunk);
      }
    } else if (plane.source == Side::kStreamedPool) {
      for (const int64_t share : {1, 1, 2, 5, 8}) {
        messages.emplace_back().mutable_ready_up_to()->set_token_end(request.tokens * share / 8);
      }
    }
    return messages;
  }

  // Covered tokens are the reference's, tokens before and pages after them are as they were, and
  // the rest of the last page is zero.
  static void ExpectTarget(const Result& got, const Request& request,
                           const std::string& reference) {
    const int64_t covered = got.decision.covered_tokens();
    const size_t token = reference.size() / request.tokens;
    const auto stale = static_cast<char>(Region::kStale);
    std::string expected(got.target.size(), stale);
    const size_t begin = request.first_token() * token;
    const size_t end = covered * token;
    expected.replace(begin, end - begin, reference, begin, end - begin);
    if (got.paged) {
      const size_t page = request.tokens_per_page * token;
      const size_t page_end = (end + page - 1) / page * page;
      expected.replace(end, page_end - end, page_end - end, '\0');
    }
    ASSERT_EQ(got.target.size(), expected.size());
    const auto difference = std::mismatch(expected.begin(), expected.end(), got.target.begin());
    EXPECT_EQ(difference.first, expected.end())
        << "token " << (difference.first - expected.begin()) / static_cast<int64_t>(token) << " of "
        << request.tokens << ", " << covered << " covered";
    EXPECT_EQ(got.strangers.find_first_not_of(stale), std::string::npos);
  }

  // Runs the request on the plane of the test and compares it with the reference.
  static void ExpectSame(const Request& request) {
    DenseCache dense(harness_->mapper().target.geometry, request.tokens);
    const engine::Decision expected =
        harness_->MapInProcess(request.header, request.source->View(), dense.View());
    ASSERT_TRUE(expected.applied()) << expected.detail;
    const Result got = Run(GetParam(), request);
    ASSERT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
    EXPECT_EQ(got.decision.covered_tokens(), expected.covered_tokens);
    EXPECT_EQ(got.decision.salt(), expected.salt);
    EXPECT_EQ(got.decision.max_abs(), expected.max_abs);
    EXPECT_EQ(got.decision.dirty_pages_size(), 0);
    ExpectTarget(got, request, BytesOf(dense.View(), {0, request.tokens}));
  }

  static inline std::unique_ptr<ServerHarness> harness_;
  static inline std::unique_ptr<RegionClient> client_;
  static inline std::unique_ptr<RegionClient> naming_client_;
};

INSTANTIATE_TEST_SUITE_P(All, PlaneTest, ::testing::ValuesIn(kPlanes),
                         [](const auto& info) { return info.param.name; });

TEST_P(PlaneTest, GivesTheBytesOfTheReference) {
  for (const int64_t tokens : {2, 17, 33, 100}) {
    SCOPED_TRACE(tokens);
    ExpectSame(Request(*harness_, tokens));
  }
}

TEST_P(PlaneTest, GivesTheSameInEveryEnginesLayout) {
  for (const EngineLayout& layout : kEngineLayouts) {
    SCOPED_TRACE(layout.engine);
    Request request(*harness_, 40);
    request.source_layout = request.target_layout = &layout;
    ExpectSame(request);
  }
}

// The source has 2 heads, 3 layers and 32 dims: an extent that equals another means nothing.
TEST_P(PlaneTest, PageSizesThatEqualOtherExtentsChangeNothing) {
  for (const int32_t slots : {1, 2, 3, 32, 64}) {
    SCOPED_TRACE(slots);
    Request request(*harness_, 33);
    request.tokens_per_page = slots;
    ExpectSame(request);
  }
}

TEST_P(PlaneTest, PaddingIsSkippedAndZeroInTheTarget) {
  Request request(*harness_, 37);
  auto* positions = request.header.mutable_source_selection()->mutable_positions();
  for (int64_t i = 0; i < 37; ++i) positions->add_list(i < 5 ? -1 : 3 * i);
  ExpectSame(request);
}

TEST_P(PlaneTest, ALongerTailLeavesMoreToTheTarget) {
  Request request(*harness_, 64);
  request.header.mutable_limits()->set_native_tail(17);
  ExpectSame(request);
  request.header.mutable_limits()->set_max_covered_tokens(16);
  ExpectSame(request);
}

TEST_P(PlaneTest, AppendingMapsTheNewTokensOnly) {
  for (const int64_t first : {1, 16, 38}) {
    SCOPED_TRACE(first);
    Request request(*harness_, 48);
    request.header.set_first_token(first);
    request.header.set_artifact_digest(harness_->mapper().digest);
    // Chunks come in 16s; those of the prefix are cut away.
    if (GetParam().source == Side::kInline && first % 16 != 0 && !GetParam().in_process) continue;
    ExpectSame(request);
  }
}

TEST_P(PlaneTest, ANonFiniteTokenIsNamedAndThePagesAreListed) {
  Request request(*harness_, 40);
  const kv::KvView view = request.source->View();
  const std::vector<float> poison(view.head_dim, std::numeric_limits<float>::quiet_NaN());
  for (int32_t layer = 0; layer < view.layers; ++layer) {
    kv::WriteHead(view, layer, kv::Component::kValue, 3, 0, poison.data());
  }
  const Result got = Run(GetParam(), request);
  EXPECT_EQ(got.decision.outcome(), v1::OUTCOME_FALLBACK_REPREFILL);
  EXPECT_EQ(got.decision.reason(), v1::REASON_NON_FINITE) << got.decision.detail();
  EXPECT_EQ(got.decision.covered_tokens(), 0);
  if (!got.paged) {
    EXPECT_EQ(got.decision.dirty_pages_size(), 0);
    return;
  }
  const std::vector<int32_t> pages = Pages(request);
  EXPECT_GT(got.decision.dirty_pages_size(), 0);
  for (const int32_t page : got.decision.dirty_pages()) {
    EXPECT_THAT(pages, ::testing::Contains(page));
  }
  const size_t token = got.target.size() / (pages.size() * request.tokens_per_page);
  EXPECT_EQ(got.target.substr(40 * token).find_first_not_of('\0'), std::string::npos)
      << "slots past the selection must be zero, whatever happened";
  EXPECT_EQ(got.strangers.find_first_not_of(static_cast<char>(Region::kStale)), std::string::npos);
}

TEST_P(PlaneTest, ARefusedRequestLeavesTheTargetAlone) {
  Request request(*harness_, 40);
  request.header.mutable_limits()->mutable_max_latency();
  const Result got = Run(GetParam(), request);
  EXPECT_EQ(got.decision.reason(), v1::REASON_LATENCY_BUDGET);
  EXPECT_EQ(got.target.find_first_not_of(static_cast<char>(Region::kStale)), std::string::npos);
  EXPECT_EQ(got.decision.dirty_pages_size(), 0);
}

TEST_P(PlaneTest, AnotherArtifactThanTheOneAskedForIsUnavailable) {
  Request request(*harness_, 40);
  request.header.set_artifact_digest(std::string(64, '0'));
  const Result got = Run(GetParam(), request);
  EXPECT_EQ(got.decision.reason(), v1::REASON_ARTIFACT_UNAVAILABLE);
  EXPECT_THAT(got.decision.detail(), HasSubstr("artifact_digest"));
}

}  // namespace
}  // namespace kvbridge::server
