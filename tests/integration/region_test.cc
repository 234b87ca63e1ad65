// Transfers whose caches lie in shared memory, over real gRPC: no byte of them travels in a
// message, what is wrong is named, and whoever dies leaves nothing behind.
#include <algorithm>
#include <functional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "core/base/bus_guard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/convert.h"
#include "tests/core/memory/host_state.h"
#include "tests/integration/held_transfer.h"
#include "tests/integration/region_client.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kPageTokens = 16;
constexpr int64_t kTokens = 40;  // three pages

class RegionTest : public ::testing::Test {
 protected:
  explicit RegionTest(HarnessOptions options = {}, bool named = false)
      : harness_(std::move(options)), client_(std::make_unique<RegionClient>(&harness_)) {
    if (named) client_->NameRegions();
    source_ = client_->MakePool(harness_.mapper().source, memory::kEngineLayouts[0], 8, kPageTokens,
                                /*writable=*/false);
    target_ = client_->MakePool(harness_.mapper().target, memory::kEngineLayouts[3], 8, kPageTokens,
                                /*writable=*/true);
    const kv::KvView view = source_->View(kTokens, source_pages_);
    std::mt19937 random(11);
    std::vector<float> head(view.head_dim);
    for (int32_t layer = 0; layer < view.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        for (int64_t token = 0; token < kTokens; ++token) {
          for (float& value : head) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
          for (int32_t h = 0; h < view.kv_heads; ++h) {
            kv::WriteHead(view, layer, c, token, h, head.data());
          }
        }
      }
    }
  }
  void TearDown() override {
    EXPECT_TRUE(harness_.Quiet());
    client_.reset();
    EXPECT_TRUE(Eventually([this] { return Use().mapped_bytes == 0; }));
    EXPECT_EQ(Use().sessions, 0);
  }

  memory::MemoryUse Use() { return harness_.server().memory()->use(); }

  v1::TransferHeader Header() {
    v1::TransferHeader header = harness_.Header(kTokens);
    source_->Locate(source_pages_, header.mutable_source_selection());
    target_->Locate(target_pages_, header.mutable_target_selection());
    return header;
  }

  static bool IsZero(const kv::KvView& view, kv::TokenRange tokens) {
    std::vector<float> row(view.row());
    for (int32_t layer = 0; layer < view.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        for (int64_t token = tokens.begin; token < tokens.end; ++token) {
          kv::ReadRows(view, layer, c, {token, token + 1}, row.data());
          if (std::any_of(row.begin(), row.end(), [](float x) { return x != 0; })) return false;
        }
      }
    }
    return true;
  }

  ServerHarness harness_;
  std::unique_ptr<RegionClient> client_;
  const std::vector<int32_t> source_pages_ = {5, 0, 3};
  const std::vector<int32_t> target_pages_ = {2, 6, 1};
  std::unique_ptr<PagedCache> source_;
  std::unique_ptr<PagedCache> target_;
};

TEST_F(RegionTest, EventsComeInTheOrderOfTheContractAndCarryNoBytes) {
  const CallResult got = harness_.Call(Header(), {});
  ASSERT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
  EXPECT_TRUE(std::all_of(got.target->bytes.begin(), got.target->bytes.end(), [](std::byte b) {
    return b == std::byte{0xEE};
  })) << "a chunk was sent";
  ASSERT_GE(got.events.size(), 4u);
  EXPECT_EQ(got.events.front().accepted().plane(), v1::PLANE_REGION);
  EXPECT_TRUE(got.events.back().has_completed());
  int released = 0;
  int32_t next_layer = 0;
  for (const v1::TransferEvent& event : got.events) {
    released += event.has_source_released();
    if (!event.has_layers_ready()) continue;
    EXPECT_EQ(event.layers_ready().layer_begin(), next_layer);
    EXPECT_EQ(event.layers_ready().token_begin(), 0);
    EXPECT_EQ(event.layers_ready().token_end(), kTokens - 1);
    next_layer = event.layers_ready().layer_end();
  }
  EXPECT_EQ(next_layer, harness_.mapper().target.geometry.layers);
  EXPECT_EQ(released, 1);
}

TEST_F(RegionTest, BytesAreCountedByHowTheyMoved) {
  ASSERT_EQ(harness_.Call(Header(), {}).decision.outcome(), v1::OUTCOME_APPLIED);
  ASSERT_TRUE(harness_.Quiet());
  const std::string metrics = harness_.server().Metrics();
  const auto counter = [&](const char* direction, const char* transport, int64_t bytes) {
    EXPECT_THAT(metrics,
                HasSubstr(absl::StrCat("kvbridge_payload_bytes_total{direction=\"", direction,
                                       "\",transport=\"", transport, "\"} ", bytes, "\n")));
  };
  counter("in", "shm", (kTokens - 1) * harness_.mapper().source.geometry.token_bytes());
  counter("out", "shm", (kTokens - 1) * harness_.mapper().target.geometry.token_bytes());
  counter("in", "inline", 0);
  counter("out", "inline", 0);
  EXPECT_THAT(metrics, HasSubstr(absl::StrCat("kvbridge_memory_pool_used_bytes{pool=\"shm\"} ",
                                              Use().mapped_bytes, "\n")));
}

TEST_F(RegionTest, CapabilitiesTellOfThePlaneAndItsSocket) {
  v1::GetCapabilitiesResponse capabilities;
  grpc::ClientContext context;
  ASSERT_TRUE(
      v1::KvBridge::NewStub(harness_.Connect())->GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_THAT(capabilities.planes(), ElementsAre(v1::PLANE_INLINE, v1::PLANE_REGION));
  EXPECT_THAT(capabilities.features(), ::testing::Contains("regions"));
  EXPECT_THAT(capabilities.memory_socket(), ::testing::EndsWith("m.sock"));
}

// --- named segments

class NamedRegionTest : public RegionTest {
 protected:
  NamedRegionTest() : RegionTest({}, /*named=*/true) {}
};

TEST_F(NamedRegionTest, CapabilitiesTellOfThem) {
  v1::GetCapabilitiesResponse capabilities;
  grpc::ClientContext context;
  ASSERT_TRUE(
      v1::KvBridge::NewStub(harness_.Connect())->GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_THAT(capabilities.features(), ::testing::Contains("named_shm"));
}

TEST_F(NamedRegionTest, ASourceThatIsCutShortInMidMapFallsBackWithTransport) {
  HeldTransfer held(harness_, Header());
  held.Ready(kTokens / 2);
  ASSERT_TRUE(source_->region.segment->Cut(0));
  held.Ready(kTokens);
  const v1::Decision decision = held.Decision();
  EXPECT_EQ(decision.outcome(), v1::OUTCOME_FALLBACK_REPREFILL);
  EXPECT_EQ(decision.reason(), v1::REASON_TRANSPORT);
  EXPECT_EQ(decision.detail(), "source_selection.pool: its owner cut the shared memory short");
  EXPECT_EQ(harness_.Call(Header(), {}).decision.reason(), v1::REASON_TRANSPORT)
      << "whatever asks for it next";
}

TEST_F(NamedRegionTest, ATargetThatIsCutShortInMidMapFallsBackWithTransportAndListsItsPages) {
  HeldTransfer held(harness_, Header());
  held.Ready(kPageTokens);
  const int32_t layers = harness_.mapper().target.geometry.layers;
  for (v1::TransferEvent event = held.Next(); event.layers_ready().layer_end() < layers;) {
    event = held.Next();
    ASSERT_NE(event.event_case(), 0) << "the stream ended";
  }
  ASSERT_TRUE(target_->region.segment->Cut(0));
  held.Ready(kTokens);
  const v1::Decision decision = held.Decision();
  EXPECT_EQ(decision.reason(), v1::REASON_TRANSPORT);
  EXPECT_EQ(decision.detail(), "target_selection.pool: its owner cut the shared memory short");
  EXPECT_THAT(decision.dirty_pages(), ElementsAre(target_pages_[0]));
}

TEST_F(NamedRegionTest, CutShortItIsReleasedLikeAnyOther) {
  const long before = memory::HostState::Now().region_maps;
  const size_t guards = base::BusGuard::InUse();
  ASSERT_TRUE(source_->region.segment->Cut(0));
  EXPECT_EQ(harness_.Call(Header(), {}).decision.reason(), v1::REASON_TRANSPORT);
  ASSERT_TRUE(harness_.Quiet());
  const uint64_t used = Use().mapped_bytes;
  EXPECT_FALSE(client_->Unregister(source_->region.id).draining());
  EXPECT_EQ(Use().mapped_bytes, used - source_->region.bytes().size());
  EXPECT_EQ(memory::HostState::Now().region_maps, before - 1);
  EXPECT_EQ(base::BusGuard::InUse(), guards - 1);
}

// --- streaming

TEST_F(RegionTest, WhatIsReadyIsMappedBeforeTheRestIs) {
  HeldTransfer held(harness_, Header());
  held.Ready(16);
  const v1::TransferEvent first = held.Next();
  ASSERT_TRUE(first.has_layers_ready());
  EXPECT_EQ(first.layers_ready().token_begin(), 0);
  EXPECT_EQ(first.layers_ready().token_end(), 16);
  held.Ready(16);  // saying it again changes nothing
  held.Ready(kTokens);
  EXPECT_EQ(held.Decision().outcome(), v1::OUTCOME_APPLIED);
}

TEST_F(RegionTest, CoveredTokensAreEnough) {
  HeldTransfer held(harness_, Header());
  held.Ready(kTokens - 1);
  EXPECT_EQ(held.Decision().covered_tokens(), kTokens - 1);
}

TEST_F(RegionTest, ABudgetListsWhatWasWrittenAndTheTailIsZero) {
  v1::TransferHeader header = Header();
  header.mutable_limits()->mutable_max_latency()->set_seconds(1);
  HeldTransfer held(harness_, std::move(header));
  held.Ready(16);
  const v1::Decision decision = held.Decision();
  EXPECT_EQ(decision.reason(), v1::REASON_LATENCY_BUDGET) << decision.detail();
  EXPECT_THAT(decision.dirty_pages(), ElementsAre(target_pages_[0]));
  EXPECT_TRUE(IsZero(target_->View(3 * kPageTokens, target_pages_), {kTokens, 3 * kPageTokens}));
}

TEST_F(RegionTest, TheStreamsEndBeforeTheLastTokenIsNamed) {
  std::vector<v1::TransferRequest> requests(2);
  *requests[0].mutable_header() = Header();
  requests[0].mutable_header()->set_streamed_source(true);
  requests[1].mutable_ready_up_to()->set_token_end(16);
  const CallResult got = harness_.Send(requests);
  EXPECT_EQ(got.completed, 1);
  EXPECT_EQ(got.decision.reason(), v1::REASON_SHAPE_MISMATCH);
  EXPECT_THAT(got.decision.detail(), HasSubstr("token 16 was never ready"));
}

TEST_F(RegionTest, ReadinessThatCannotBeIsNamed) {
  for (const auto& [ends, detail] :
       {std::pair{std::vector<int64_t>{20, 19}, "expected 20 to 40, got 19"},
        {std::vector<int64_t>{41}, "expected 0 to 40, got 41"},
        {std::vector<int64_t>{-1}, "expected 0 to 40, got -1"}}) {
    HeldTransfer held(harness_, Header());
    for (const int64_t end : ends) held.Ready(end);
    const v1::Decision decision = held.Decision();
    EXPECT_EQ(decision.reason(), v1::REASON_SHAPE_MISMATCH);
    EXPECT_THAT(decision.detail(), HasSubstr(detail));
  }
}

TEST_F(RegionTest, MessagesOfTheOtherPlaneAreNamed) {
  DenseCache dense(harness_.mapper().source.geometry, kTokens);
  std::vector<v1::TransferRequest> requests(2);
  *requests[0].mutable_header() = Header();
  requests[0].mutable_header()->set_streamed_source(true);
  *requests[1].mutable_chunk() = harness_.Chunks(dense)[0];
  EXPECT_THAT(harness_.Send(requests).decision.detail(), HasSubstr("chunk: expected none"));
  *requests[0].mutable_header() = harness_.Header(kTokens);
  requests[1].mutable_ready_up_to()->set_token_end(16);
  EXPECT_THAT(harness_.Send(requests).decision.detail(), HasSubstr("expected chunks"));
}

// --- bad places

struct BadPlace {
  const char* name;
  std::function<void(v1::TransferHeader*)> spoil;
  v1::Reason reason;
  const char* detail;
};

class BadPlaceTest : public RegionTest, public ::testing::WithParamInterface<BadPlace> {};

TEST_P(BadPlaceTest, IsNamedAndNothingIsWritten) {
  v1::TransferHeader header = Header();
  GetParam().spoil(&header);
  const CallResult got = harness_.Call(header, {});
  EXPECT_EQ(got.completed, 1);
  EXPECT_EQ(got.events.size(), 1u) << "a refused transfer has only its end";
  EXPECT_EQ(got.decision.reason(), GetParam().reason) << got.decision.detail();
  EXPECT_THAT(got.decision.detail(), HasSubstr(GetParam().detail));
  EXPECT_THAT(got.decision.dirty_pages(), IsEmpty());
  EXPECT_FALSE(client_->Unregister(target_->pool_id).draining()) << "a pin was left";
}

v1::PoolLocation* SourcePool(v1::TransferHeader* h) {
  return h->mutable_source_selection()->mutable_pool();
}
v1::PoolLocation* TargetPool(v1::TransferHeader* h) {
  return h->mutable_target_selection()->mutable_pool();
}

const BadPlace kBadPlaces[] = {
    {"UnknownPool", [](auto* h) { SourcePool(h)->set_pool_id(std::string(32, '0')); },
     v1::REASON_INVALID_REQUEST, "source_selection.pool: "},
    {"StaleGeneration",
     [](auto* h) { TargetPool(h)->set_generation(TargetPool(h)->generation() + 1); },
     v1::REASON_INVALID_REQUEST, "target_selection.pool: "},
    {"EvictedPage", [](auto* h) { SourcePool(h)->set_pages(1, -1); }, v1::REASON_SHAPE_MISMATCH,
     "source_selection.pool: pages[1]: evicted"},
    {"PageTwice", [](auto* h) { TargetPool(h)->set_pages(1, 2); }, v1::REASON_SHAPE_MISMATCH,
     "target_selection.pool: pages[1]"},
    {"PageBeyondThePool", [](auto* h) { TargetPool(h)->set_pages(0, 8); },
     v1::REASON_SHAPE_MISMATCH, "pages[0]: expected 0 to 7, got 8"},
    {"TooFewPages", [](auto* h) { SourcePool(h)->mutable_pages()->RemoveLast(); },
     v1::REASON_SHAPE_MISMATCH, "pages: expected 3 for 40 tokens, got 2"},
    {"TargetInReadOnlyRegions", [](auto* h) { *TargetPool(h) = *SourcePool(h); },
     v1::REASON_INVALID_REQUEST, "target_selection.pool: "},
    {"PoolOfAnotherModel", [](auto* h) { *SourcePool(h) = *TargetPool(h); },
     v1::REASON_INVALID_REQUEST, "source_selection.pool: model.identity.model_id"},
    {"PoolOfAnotherElementType",
     [](auto* h) {
       h->mutable_source()->mutable_geometry()->set_element_type(v1::ELEMENT_TYPE_F32);
     },
     v1::REASON_INVALID_REQUEST, "model.geometry.element_type: expected f32, got bf16"},
    {"ScalesBesideAPool", [](auto* h) { h->mutable_source_selection()->add_scales(); },
     v1::REASON_INVALID_REQUEST, "source_selection.scales: expected none"},
    {"StreamedInline",
     [](auto* h) {
       h->mutable_source_selection()->mutable_inline_();
       h->set_streamed_source(true);
     },
     v1::REASON_INVALID_REQUEST, "streamed_source"},
};

INSTANTIATE_TEST_SUITE_P(All, BadPlaceTest, ::testing::ValuesIn(kBadPlaces),
                         [](const auto& info) { return info.param.name; });

TEST_F(RegionTest, AnotherTenantsPoolSoundsLikeAnUnknownOne) {
  v1::TransferHeader header = Header();
  header.set_tenant("bo");
  const std::string foreign = harness_.Call(header, {}).decision.detail();
  SourcePool(&header)->set_pool_id(std::string(32, '0'));
  EXPECT_EQ(harness_.Call(header, {}).decision.detail(), foreign);
  EXPECT_THAT(foreign, HasSubstr("source_selection.pool"));
}

// --- lives that end

TEST_F(RegionTest, ASessionThatDropsWhileATransferRunsTakesNothingFromIt) {
  HeldTransfer held(harness_, Header());
  held.Ready(16);
  ASSERT_TRUE(held.Next().has_layers_ready());
  const uint64_t mapped = Use().mapped_bytes;
  client_->Drop();
  ASSERT_TRUE(Eventually([this] { return Use().sessions == 0; }));
  EXPECT_EQ(Use().mapped_bytes, mapped) << "memory was unmapped under a transfer";
  EXPECT_EQ(Use().draining_bytes, mapped);
  EXPECT_EQ(harness_.Call(Header(), {}).decision.reason(), v1::REASON_INVALID_REQUEST)
      << "a pool that drains takes no new transfers";
  held.Ready(kTokens);
  EXPECT_EQ(held.Decision().outcome(), v1::OUTCOME_APPLIED);
  EXPECT_TRUE(Eventually([this] { return Use().mapped_bytes == 0; }));
}

TEST_F(RegionTest, UnregisteringWhatIsUsedAnswersDrainingAndUnmapsAtTheEnd) {
  HeldTransfer held(harness_, Header());
  EXPECT_TRUE(client_->Unregister(source_->region.id).draining());
  EXPECT_TRUE(client_->Unregister(target_->pool_id).draining());
  EXPECT_GT(Use().draining_bytes, 0u);
  held.Cancel();
  EXPECT_TRUE(Eventually([this] { return Use().draining_bytes == 0; }));
}

TEST_F(RegionTest, CallersThatGoAwayAnywhereLeaveNoPin) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    HeldTransfer held(harness_, Header());
    held.Ready(1 + random() % kTokens);
    if (random() % 2 == 0) {
      EXPECT_TRUE(held.Next().has_layers_ready());
    }
    held.Cancel();
  }
  EXPECT_TRUE(harness_.Quiet());
  EXPECT_FALSE(client_->Unregister(source_->region.id).draining());
  EXPECT_FALSE(client_->Unregister(target_->region.id).draining());
}

TEST_F(RegionTest, ADeadlineLetsGoOfThePins) {
  HeldTransfer held(harness_, Header(), absl::Seconds(1));
  held.Ready(16);
  EXPECT_EQ(held.AwaitEnd(), grpc::DEADLINE_EXCEEDED);
  EXPECT_TRUE(harness_.Quiet());
  EXPECT_FALSE(client_->Unregister(source_->region.id).draining());
  EXPECT_FALSE(client_->Unregister(target_->region.id).draining());
}

TEST_F(RegionTest, HeartbeatsKeepTheSession) {
  const std::string id = client_->session_id();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client_->Heartbeat());
  EXPECT_EQ(client_->session_id(), id);
  EXPECT_EQ(Use().sessions, 1);
}

TEST_F(RegionTest, ASessionOfNobodyIsNotFound) {
  v1::RegisterRegionRequest region;
  region.set_session_id(std::string(32, '0'));
  region.set_bytes(4096);
  v1::RegisterRegionResponse granted;
  grpc::ClientContext context;
  EXPECT_EQ(client_->stub().RegisterRegion(&context, region, &granted).error_code(),
            grpc::NOT_FOUND);
  v1::ListRequest list;
  list.set_session_id(std::string(32, '0'));
  v1::ListResponse owned;
  grpc::ClientContext list_context;
  EXPECT_EQ(client_->stub().List(&list_context, list, &owned).error_code(), grpc::NOT_FOUND);
}

TEST_F(RegionTest, ARegionBeyondTheQuotaLeavesNothing) {
  const uint64_t mapped = Use().mapped_bytes;
  v1::RegisterRegionRequest request;
  request.set_session_id(client_->session_id());
  request.set_bytes(1 << 30);
  v1::RegisterRegionResponse response;
  grpc::ClientContext context;
  const grpc::Status status = client_->stub().RegisterRegion(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_EQ(Use().mapped_bytes, mapped);
  v1::ListRequest list;
  list.set_session_id(client_->session_id());
  v1::ListResponse owned;
  grpc::ClientContext list_context;
  ASSERT_TRUE(client_->stub().List(&list_context, list, &owned).ok());
  EXPECT_THAT(owned.region_ids(),
              ::testing::UnorderedElementsAre(source_->region.id, target_->region.id));
  EXPECT_THAT(owned.pool_ids(),
              ::testing::UnorderedElementsAre(source_->pool_id, target_->pool_id));
}

TEST_F(RegionTest, ADrainEndsSessionsWhenTransfersHaveEnded) {
  HeldTransfer held(harness_, Header());
  held.Ready(16);
  ASSERT_TRUE(held.Next().has_layers_ready());
  harness_.server().RequestDrain(/*skip_delay=*/true);
  std::thread stopping([this] { harness_.server().Wait(); });
  held.Ready(kTokens);
  EXPECT_EQ(held.Decision().outcome(), v1::OUTCOME_APPLIED);
  stopping.join();
  EXPECT_FALSE(client_->Heartbeat());
  EXPECT_EQ(Use().sessions, 0);
}

class ShadowRegionTest : public RegionTest {
 protected:
  ShadowRegionTest() : RegionTest(Options()) {}
  static HarnessOptions Options() {
    HarnessOptions options;
    options.configure = [](v1::Config* config) {
      config->mutable_routes(0)->set_stage(v1::ROUTE_STAGE_SHADOW);
    };
    return options;
  }
};

TEST_F(ShadowRegionTest, NothingIsSaidToBeReadyAndThePagesAreListed) {
  const CallResult got = harness_.Call(Header(), {});
  EXPECT_EQ(got.decision.reason(), v1::REASON_ROUTE_DISABLED) << got.decision.detail();
  EXPECT_THAT(got.decision.dirty_pages(), ::testing::UnorderedElementsAreArray(target_pages_));
  for (const auto& event : got.events) EXPECT_FALSE(event.has_layers_ready());
}

// A lease and an idle timeout that a test can wait for.
class ImpatientTest : public RegionTest {
 protected:
  ImpatientTest() : RegionTest(Options()) {}
  static HarnessOptions Options() {
    HarnessOptions options;
    options.configure = [](v1::Config* config) {
      *config->mutable_limits()->mutable_idle_timeout() = ToProto(absl::Seconds(1));
      *config->mutable_memory()->mutable_lease() = ToProto(absl::Seconds(2));
    };
    return options;
  }
};

TEST_F(ImpatientTest, ReadinessThatNeverComesFallsBack) {
  HeldTransfer held(harness_, Header());
  held.Ready(16);
  const v1::Decision decision = held.Decision();
  EXPECT_EQ(decision.reason(), v1::REASON_TRANSPORT);
  EXPECT_EQ(decision.detail(), "stream: nothing was sent or read for 1s");
  EXPECT_THAT(decision.dirty_pages(), ElementsAre(target_pages_[0]));
}

TEST_F(ImpatientTest, AMissedHeartbeatReleasesAllWithoutOtherTraffic) {
  EXPECT_GT(Use().mapped_bytes, 0u);
  EXPECT_TRUE(Eventually([this] { return Use().sessions == 0 && Use().mapped_bytes == 0; }));
  EXPECT_FALSE(client_->Heartbeat());
}

}  // namespace
}  // namespace kvbridge::server
