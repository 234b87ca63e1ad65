// Transfers over real gRPC: what is good is mapped like in process, what is bad is named.
#include <chrono>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;

// One server for all tests of this file: that none leaves anything behind is part of each.
class TransferTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { harness_ = std::make_unique<ServerHarness>(); }
  static void TearDownTestSuite() { harness_.reset(); }
  void TearDown() override { EXPECT_TRUE(harness_->Quiet()); }

  static DenseCache Source(int64_t tokens) {
    DenseCache cache(harness_->mapper().source.geometry, tokens);
    cache.Randomise(11);
    return cache;
  }

  static inline std::unique_ptr<ServerHarness> harness_;
};

TEST_F(TransferTest, GivesTheBytesThatTheEngineGivesInProcess) {
  for (const int64_t tokens : {2, 33, 100}) {
    DenseCache source = Source(tokens);
    DenseCache expected(harness_->mapper().target.geometry, tokens);
    ASSERT_TRUE(harness_->MapInProcess(source, expected).applied());
    const CallResult got = harness_->Call(harness_->Header(tokens), harness_->Chunks(source));
    ASSERT_TRUE(got.status.ok()) << got.status.error_message();
    EXPECT_EQ(got.completed, 1);
    EXPECT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
    EXPECT_EQ(got.decision.covered_tokens(), tokens - 1);
    EXPECT_TRUE(got.decision.approximate());
    EXPECT_EQ(got.decision.artifact_digest(), harness_->mapper().digest);
    for (int32_t layer = 0; layer < expected.geometry.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        EXPECT_EQ(got.target->Rows(layer, c, {0, tokens - 1}),
                  expected.Rows(layer, c, {0, tokens - 1}))
            << tokens << " tokens, layer " << layer;
        EXPECT_EQ(got.target->Rows(layer, c, {tokens - 1, tokens}),
                  std::string(expected.geometry.row() * 2, '\xEE'))
            << "a token that is not covered was sent";
      }
    }
  }
}

TEST_F(TransferTest, EventsComeInTheOrderOfTheContract) {
  const CallResult got = harness_->Call(harness_->Header(70), harness_->Chunks(Source(70)));
  ASSERT_GE(got.events.size(), 3u);
  EXPECT_TRUE(got.events.front().has_accepted());
  EXPECT_EQ(got.events.front().accepted().covered_tokens(), 69);
  EXPECT_EQ(got.events.front().accepted().tile_tokens(), 32);
  EXPECT_TRUE(got.events.back().has_completed());
  int64_t ready = 0;
  for (const auto& event : got.events) {
    if (!event.has_layers_ready()) continue;
    ready += (event.layers_ready().layer_end() - event.layers_ready().layer_begin()) *
             (event.layers_ready().token_end() - event.layers_ready().token_begin());
  }
  EXPECT_EQ(ready, 69 * harness_->mapper().target.geometry.layers);
}

TEST_F(TransferTest, ChunksMayComeInAnyOrder) {
  const DenseCache source = Source(50);
  auto chunks = harness_->Chunks(source);
  const CallResult in_order = harness_->Call(harness_->Header(50), chunks);
  std::reverse(chunks.begin(), chunks.end());
  const CallResult reversed = harness_->Call(harness_->Header(50), chunks);
  EXPECT_EQ(reversed.decision.outcome(), v1::OUTCOME_APPLIED) << reversed.decision.detail();
  EXPECT_EQ(reversed.target->bytes, in_order.target->bytes);
}

TEST_F(TransferTest, ARouteIsFoundByBothModels) {
  v1::TransferHeader header = harness_->Header(10);
  header.clear_route();
  const CallResult got = harness_->Call(header, harness_->Chunks(Source(10)));
  EXPECT_EQ(got.decision.outcome(), v1::OUTCOME_APPLIED) << got.decision.detail();
  EXPECT_EQ(got.decision.route(), kRoute);
}

// --- bad input

struct BadCase {
  const char* name;
  std::function<void(v1::TransferHeader*, std::vector<v1::TransferChunk>*)> spoil;
  v1::Outcome outcome;
  v1::Reason reason;
  const char* detail;
};

class BadInputTest : public TransferTest, public ::testing::WithParamInterface<BadCase> {};

TEST_P(BadInputTest, IsNamed) {
  v1::TransferHeader header = harness_->Header(40);
  std::vector<v1::TransferChunk> chunks = harness_->Chunks(Source(40));
  GetParam().spoil(&header, &chunks);
  const CallResult got = harness_->Call(header, chunks);
  EXPECT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.completed, 1);
  EXPECT_EQ(got.decision.outcome(), GetParam().outcome);
  EXPECT_EQ(got.decision.reason(), GetParam().reason)
      << v1::Reason_Name(got.decision.reason()) << " " << got.decision.detail();
  EXPECT_THAT(got.decision.detail(), HasSubstr(GetParam().detail));
  EXPECT_EQ(got.decision.covered_tokens(), 0);
  EXPECT_TRUE(harness_->Quiet());
}

using Header = v1::TransferHeader*;
using ChunkList = std::vector<v1::TransferChunk>*;
constexpr auto kFallback = v1::OUTCOME_FALLBACK_REPREFILL;
constexpr auto kUnsupported = v1::OUTCOME_UNSUPPORTED;

// The first BF16 elements of a chunk.
void Poison(v1::TransferChunk* chunk, uint16_t bits) {
  (*chunk->mutable_data())[0] = static_cast<char>(bits & 0xFF);
  (*chunk->mutable_data())[1] = static_cast<char>(bits >> 8);
  Seal(chunk);
}

const BadCase kBadCases[] = {
    {"DuplicateChunk", [](Header, ChunkList c) { c->insert(c->begin() + 1, c->front()); },
     kFallback, v1::REASON_SHAPE_MISMATCH, "duplicate chunk"},
    {"OverlappingChunk",
     [](Header, ChunkList c) {
       v1::TransferChunk more = c->front();
       more.set_token_begin(8);
       more.set_token_end(24);
       c->insert(c->begin() + 1, more);
     },
     kFallback, v1::REASON_SHAPE_MISMATCH, "overlapping chunk"},
    {"MissingChunk", [](Header, ChunkList c) { c->erase(c->begin() + 3); }, kFallback,
     v1::REASON_SHAPE_MISMATCH, "missing"},
    {"NoChunks", [](Header, ChunkList c) { c->clear(); }, kFallback, v1::REASON_SHAPE_MISMATCH,
     "missing"},
    {"BadCrc", [](Header, ChunkList c) { (*c)[2].set_crc32c((*c)[2].crc32c() ^ 1); }, kFallback,
     v1::REASON_TRANSPORT, "chunk.crc32c"},
    {"ChunkBeyondLayers",
     [](Header, ChunkList c) {
       (*c)[0].set_layer_begin(99);
       (*c)[0].set_layer_end(100);
     },
     kFallback, v1::REASON_SHAPE_MISMATCH, "layer range"},
    {"ChunkBeyondTokens",
     [](Header, ChunkList c) {
       (*c)[0].set_token_begin(int64_t{1} << 62);
       (*c)[0].set_token_end((int64_t{1} << 62) + 16);
     },
     kFallback, v1::REASON_SHAPE_MISMATCH, "token range"},
    {"ChunkOfAnotherSize",
     [](Header, ChunkList c) {
       (*c)[0].mutable_data()->pop_back();
       Seal(&(*c)[0]);
     },
     kFallback, v1::REASON_SHAPE_MISMATCH, "chunk bytes"},
    {"ChunkWithoutComponent",
     [](Header, ChunkList c) { (*c)[0].set_component(v1::COMPONENT_UNSPECIFIED); }, kFallback,
     v1::REASON_INVALID_REQUEST, "chunk.component"},
    {"NanInKeys", [](Header, ChunkList c) { Poison(&(*c)[0], 0x7FC0); }, kFallback,
     v1::REASON_NON_FINITE, ""},
    {"InfinityInValues",
     [](Header, ChunkList c) {
       // In every layer: what no target layer reads does no harm.
       for (auto& chunk : *c) {
         if (chunk.component() == v1::COMPONENT_VALUE) Poison(&chunk, 0x7F80);
       }
     },
     kFallback, v1::REASON_NON_FINITE, ""},
    {"PositionsDecrease",
     [](Header h, ChunkList) {
       for (int i = 0; i < 40; ++i) {
         h->mutable_source_selection()->mutable_positions()->add_list(100 - i);
       }
     },
     kFallback, v1::REASON_INVALID_REQUEST, "position"},
    {"TooFewPositions",
     [](Header h, ChunkList) { h->mutable_source_selection()->mutable_positions()->add_list(0); },
     kFallback, v1::REASON_INVALID_REQUEST, "source_selection.positions.list"},
    {"PositionsBeyondMax",
     [](Header h, ChunkList) { h->mutable_source()->mutable_rope()->set_max_position(20); },
     kFallback, v1::REASON_INVALID_REQUEST, "position"},
    {"HeadsDiffer",
     [](Header h, ChunkList) { h->mutable_source()->mutable_geometry()->set_kv_heads(4); },
     kFallback, v1::REASON_SHAPE_MISMATCH, "source.geometry.kv_heads"},
    {"ElementTypeUnspecified",
     [](Header h, ChunkList) {
       h->mutable_source()->mutable_geometry()->set_element_type(v1::ELEMENT_TYPE_UNSPECIFIED);
     },
     kFallback, v1::REASON_INVALID_REQUEST, "source.geometry.element_type"},
    {"ElementTypeUnknown",
     [](Header h, ChunkList) {
       h->mutable_target()->mutable_geometry()->set_element_type(static_cast<v1::ElementType>(77));
     },
     kFallback, v1::REASON_INVALID_REQUEST, "target.geometry.element_type"},
    {"KeyStateUnspecified",
     [](Header h, ChunkList) {
       h->mutable_source_selection()->set_key_state(v1::KEY_STATE_UNSPECIFIED);
     },
     kFallback, v1::REASON_INVALID_REQUEST, "source_selection.key_state"},
    {"TokenizerDiffers",
     [](Header h, ChunkList) {
       h->mutable_source()->mutable_identity()->set_tokenizer_sha256(std::string(64, 'b'));
     },
     kFallback, v1::REASON_INCOMPATIBLE_MODEL, "tokenizer_sha256"},
    {"RevisionDiffers",
     [](Header h, ChunkList) {
       h->mutable_target()->mutable_identity()->set_revision(std::string(40, 'b'));
     },
     kFallback, v1::REASON_INCOMPATIBLE_MODEL, "target.identity.revision"},
    {"RopeDiffers",
     [](Header h, ChunkList) {
       auto* params = h->mutable_source()->mutable_rope()->mutable_params();
       params->set_inv_freq(1, params->inv_freq(1) * 1.01);
     },
     kFallback, v1::REASON_INCOMPATIBLE_MODEL, "inv_freq"},
    {"RopeWithoutPairing",
     [](Header h, ChunkList) {
       h->mutable_source()->mutable_rope()->mutable_params()->set_pairing(v1::PAIRING_UNSPECIFIED);
     },
     kFallback, v1::REASON_INVALID_REQUEST, "source.rope.params.pairing"},
    {"AnAdapter",
     [](Header h, ChunkList) {
       h->mutable_source()->mutable_identity()->set_adapter_digest(std::string(64, 'c'));
     },
     kUnsupported, v1::REASON_INCOMPATIBLE_MODEL, "adapter"},
    {"SlidingLayers",
     [](Header h, ChunkList) {
       auto* geometry = h->mutable_source()->mutable_geometry();
       for (int i = 0; i < geometry->layers(); ++i) {
         geometry->add_attention(v1::ATTENTION_KIND_SLIDING);
       }
     },
     kUnsupported, v1::REASON_INCOMPATIBLE_MODEL, "attention"},
    {"ABillionLayers",
     [](Header h, ChunkList) { h->mutable_source()->mutable_geometry()->set_layers(1000000000); },
     kFallback, v1::REASON_INVALID_REQUEST, "source.geometry.layers: expected 1 to 4096"},
    {"NoTokens",
     [](Header h, ChunkList c) {
       h->mutable_source_selection()->set_tokens(0);
       c->clear();
     },
     kFallback, v1::REASON_INVALID_REQUEST, "tokens"},
    {"OneToken",
     [](Header h, ChunkList c) {
       h->mutable_source_selection()->set_tokens(1);
       c->clear();
     },
     kFallback, v1::REASON_NOT_WORTH_IT, ""},
    {"TooManyTokens",
     [](Header h, ChunkList) { h->mutable_source_selection()->set_tokens(int64_t{1} << 40); },
     kFallback, v1::REASON_TOKEN_LIMIT, "tokens"},
    {"LatencyBudgetZero", [](Header h, ChunkList) { h->mutable_limits()->mutable_max_latency(); },
     kFallback, v1::REASON_LATENCY_BUDGET, "max_latency"},
    {"TooManyHops", [](Header h, ChunkList) { h->set_hops(1); }, kFallback, v1::REASON_APP_GATE,
     "hops"},
    {"UnknownRoute", [](Header h, ChunkList) { h->set_route("nowhere"); }, kFallback,
     v1::REASON_INVALID_REQUEST, "route: expected a configured name, got \"nowhere\""},
    {"UnknownPair",
     [](Header h, ChunkList) {
       h->clear_route();
       h->mutable_source()->mutable_identity()->set_model_id("test/stranger");
     },
     kUnsupported, v1::REASON_ARTIFACT_UNAVAILABLE, "no route serves this pair"},
    {"APool",
     [](Header h, ChunkList) { h->mutable_source_selection()->mutable_pool()->set_pool_id("x"); },
     kFallback, v1::REASON_INVALID_REQUEST, "source_selection.pool"},
    {"NoLocation", [](Header h, ChunkList) { h->mutable_target_selection()->clear_inline_(); },
     kFallback, v1::REASON_INVALID_REQUEST, "target_selection.location"},
    {"NoSource", [](Header h, ChunkList) { h->clear_source(); }, kFallback,
     v1::REASON_INVALID_REQUEST, "source: expected a model"},
    {"NoRequestId", [](Header h, ChunkList) { h->clear_request_id(); }, kFallback,
     v1::REASON_INVALID_REQUEST, "request_id"},
};

INSTANTIATE_TEST_SUITE_P(All, BadInputTest, ::testing::ValuesIn(kBadCases),
                         [](const auto& info) { return info.param.name; });

TEST_F(TransferTest, ASecondHeaderIsRefused) {
  std::vector<v1::TransferRequest> requests(2);
  *requests[0].mutable_header() = harness_->Header(40);
  *requests[1].mutable_header() = harness_->Header(40);
  const CallResult got = harness_->Send(requests);
  EXPECT_TRUE(got.status.ok());
  EXPECT_EQ(got.decision.reason(), v1::REASON_INVALID_REQUEST);
  EXPECT_THAT(got.decision.detail(), HasSubstr("got a second"));
}

TEST_F(TransferTest, AStreamWithoutHeaderIsInvalidArgument) {
  std::vector<v1::TransferRequest> requests(1);
  const CallResult neither = harness_->Send(requests);
  EXPECT_EQ(neither.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(neither.status.error_message(), HasSubstr("expected header, chunk or ready_up_to"));
  *requests[0].mutable_chunk() = harness_->Chunks(Source(4))[0];
  const CallResult chunk_first = harness_->Send(requests);
  EXPECT_EQ(chunk_first.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(chunk_first.status.error_message(), HasSubstr("expected the header first"));
  const CallResult nothing = harness_->Send({});
  EXPECT_EQ(nothing.status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(nothing.status.error_message(), HasSubstr("expected a header, got its end"));
}

TEST_F(TransferTest, ADeadlineThatHasPassedIsDeadlineExceeded) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now());
  const CallResult got =
      harness_->Call(harness_->Header(40), harness_->Chunks(Source(40)), &context);
  EXPECT_EQ(got.status.error_code(), grpc::DEADLINE_EXCEEDED);
}

TEST_F(TransferTest, ARefusedUploadIsNotReadToItsEnd) {
  v1::TransferHeader header = harness_->Header(40);
  header.set_route("nowhere");
  // More than flow control lets through: the writer must be told, not waited for.
  std::vector<v1::TransferChunk> chunks(64, harness_->Chunks(Source(40))[0]);
  for (auto& chunk : chunks) chunk.set_data(std::string(1 << 20, 'x'));
  const CallResult got = harness_->Call(header, chunks);
  EXPECT_TRUE(got.status.ok());
  EXPECT_EQ(got.decision.bytes_in(), 0);
}

TEST_F(TransferTest, ABudgetEndsATransferWhoseCallerStalls) {
  grpc::ClientContext context;
  const auto stub = v1::KvBridge::NewStub(harness_->Connect());
  const auto stream = stub->Transfer(&context);
  v1::TransferRequest request;
  *request.mutable_header() = harness_->Header(40);
  request.mutable_header()->mutable_limits()->mutable_max_latency()->set_nanos(20000000);
  ASSERT_TRUE(stream->Write(request));
  v1::TransferEvent event;
  ASSERT_TRUE(stream->Read(&event));
  EXPECT_TRUE(event.has_accepted());
  ASSERT_TRUE(stream->Read(&event));
  ASSERT_TRUE(event.has_completed());
  EXPECT_EQ(event.completed().decision().reason(), v1::REASON_LATENCY_BUDGET);
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(TransferTest, MetricsCountWhatHappened) {
  v1::TransferHeader header = harness_->Header(40);
  header.set_hops(1);
  harness_->Call(header, {});
  ASSERT_TRUE(harness_->Quiet());
  EXPECT_THAT(harness_->server().Metrics(),
              ::testing::ContainsRegex("kvbridge_fallbacks_total\\{class=\"policy\",pair=\"small-"
                                       "to-large\",reason=\"app_gate\"\\} [1-9]"));
  EXPECT_THAT(harness_->server().Metrics(), HasSubstr("kvbridge_inflight_transfers 0\n"));
}

}  // namespace
}  // namespace kvbridge::server
