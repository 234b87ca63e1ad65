#include "server/convert.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/convert_memory.h"
#include "server/grpc_status.h"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;

v1::ModelSpec Model() {
  v1::ModelSpec spec;
  spec.mutable_identity()->set_model_id("org/model");
  spec.mutable_geometry()->set_layers(2);
  spec.mutable_geometry()->set_kv_heads(2);
  spec.mutable_geometry()->set_head_dim(4);
  spec.mutable_geometry()->set_element_type(v1::ELEMENT_TYPE_BF16);
  auto* rope = spec.mutable_rope()->mutable_params();
  rope->set_rotary_dim(4);
  rope->set_pairing(v1::PAIRING_HALF);
  for (const double f : {1.0, 0.01}) rope->add_inv_freq(f);
  return spec;
}

v1::TransferHeader Header() {
  v1::TransferHeader header;
  *header.mutable_source() = Model();
  *header.mutable_target() = Model();
  header.mutable_source_selection()->set_tokens(3);
  header.mutable_source_selection()->set_key_state(v1::KEY_STATE_ROPED);
  header.mutable_source_selection()->mutable_inline_();
  header.mutable_target_selection()->mutable_inline_();
  return header;
}

std::string ErrorOf(const v1::TransferHeader& header) {
  const auto input = ToTransferInput(header, absl::InfiniteFuture());
  EXPECT_EQ(input.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(input.status().message());
}

TEST(ConvertTest, AModelComesBackAsItWent) {
  v1::ModelSpec spec = Model();
  (*spec.mutable_rope()->mutable_layer_overrides())[1] = spec.rope().params();
  const auto core = ToModelSpec(spec, "source");
  ASSERT_TRUE(core.ok()) << core.status();
  const auto again = ToModelSpec(ToProto(*core), "source");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *core);
}

TEST(ConvertTest, LeftOutNumbersHaveTheirDocumentedMeaning) {
  const auto input = ToTransferInput(Header(), absl::InfiniteFuture());
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->spec.source.rope.params.attention_factor, 1.0);
  EXPECT_EQ(input->spec.source.geometry.tp_degree, 1);
  EXPECT_FALSE(input->spec.max_latency.has_value());
  EXPECT_EQ(input->spec.overflow, guard::OverflowPolicy::kFail);
}

TEST(ConvertTest, CountsAreBoundedBeforeAnythingIsSizedByThem) {
  v1::TransferHeader header = Header();
  header.mutable_source()->mutable_geometry()->set_layers(2000000000);
  EXPECT_EQ(ErrorOf(header), "source.geometry.layers: expected 1 to 4096, got 2000000000");
  header = Header();
  header.mutable_target()->mutable_geometry()->set_head_dim(-1);
  EXPECT_EQ(ErrorOf(header), "target.geometry.head_dim: expected 1 to 4096, got -1");
  header = Header();
  header.mutable_source()->mutable_rope()->mutable_params()->set_rotary_dim(1 << 30);
  EXPECT_EQ(ErrorOf(header), "source.rope.params.rotary_dim: expected 0 to 4096, got 1073741824");
}

TEST(ConvertTest, ADurationOfTwoSignsOrManySecondsOfNanosIsRefused) {
  for (const auto& [seconds, nanos] : {std::pair(5, -1), {0, 2'000'000'000}, {-1, 1}}) {
    v1::TransferHeader header = Header();
    header.mutable_limits()->mutable_max_latency()->set_seconds(seconds);
    header.mutable_limits()->mutable_max_latency()->set_nanos(nanos);
    EXPECT_THAT(ErrorOf(header), HasSubstr("limits.max_latency: expected seconds and nanos"));
  }
}

TEST(ConvertTest, ListsMustHaveTheirLength) {
  v1::TransferHeader header = Header();
  header.mutable_source()->mutable_rope()->mutable_params()->add_inv_freq(0.5);
  EXPECT_EQ(ErrorOf(header), "source.rope.params.inv_freq: expected 2 entries, got 3");
  header = Header();
  header.mutable_source()->mutable_geometry()->add_attention(v1::ATTENTION_KIND_FULL);
  EXPECT_EQ(ErrorOf(header), "source.geometry.attention: expected 0 or 2 entries, got 1");
  header = Header();
  (*header.mutable_source()->mutable_rope()->mutable_layer_overrides())[7] =
      Model().rope().params();
  EXPECT_THAT(ErrorOf(header), HasSubstr("layer_overrides[7]: expected a layer from 0 to 1"));
}

TEST(ConvertTest, Fp8NeedsScalesAndOthersHaveNone) {
  v1::TransferHeader header = Header();
  header.mutable_source()->mutable_geometry()->set_element_type(v1::ELEMENT_TYPE_F8_E4M3);
  EXPECT_THAT(ErrorOf(header), HasSubstr("source_selection.scales[0]"));
  for (int layer = 0; layer < 2; ++layer) {
    auto* scales = header.mutable_source_selection()->add_scales();
    scales->add_key(0.02f);
    scales->add_value(0.03f);
    scales->add_value(0.04f);
  }
  const auto input = ToTransferInput(header, absl::InfiniteFuture());
  ASSERT_TRUE(input.ok()) << input.status();
  ASSERT_EQ(input->source.scales.size(), 4u);
  EXPECT_THAT(input->source.scales[1], ::testing::ElementsAre(0.03f, 0.04f));
  header.mutable_source_selection()->mutable_scales(1)->set_key(0, -1);
  EXPECT_THAT(ErrorOf(header), HasSubstr("source_selection.scales[1]"));
}

TEST(ConvertTest, ASourceThatIsMappedIsTheTargetAlready) {
  v1::TransferHeader header = Header();
  header.mutable_source()->mutable_geometry()->set_layers(2);
  header.mutable_target()->mutable_geometry()->set_layers(1);
  header.mutable_source_selection()->mutable_remote()->set_mapped(true);
  EXPECT_EQ(ErrorOf(header),
            "target_selection.location: expected a pool for a source that is mapped, got another");
  header.mutable_target_selection()->mutable_pool()->set_pool_id("abc");
  EXPECT_THAT(ErrorOf(header), HasSubstr("artifact_digest: expected that of the artifact"));
  header.set_artifact_digest(std::string(64, 'a'));
  const auto input = ToTransferInput(header, absl::InfiniteFuture());
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_TRUE(input->source.mapped);
  EXPECT_EQ(input->spec.source, input->spec.target);
  EXPECT_EQ(input->spec.source.geometry.layers, 1);
  header.mutable_target()->mutable_geometry()->set_element_type(v1::ELEMENT_TYPE_F8_E4M3);
  EXPECT_THAT(ErrorOf(header), HasSubstr("target.geometry.element_type: expected one without"));
  header.mutable_target_selection()->mutable_remote();
  EXPECT_THAT(ErrorOf(header), HasSubstr("target_selection.remote: expected a source"));
}

TEST(ConvertTest, EachSelectionMayLieInAPool) {
  v1::TransferHeader header = Header();
  v1::PoolLocation& pool = *header.mutable_source_selection()->mutable_pool();
  pool.set_pool_id("abc");
  pool.set_generation(7);
  pool.add_pages(4);
  header.set_streamed_source(true);
  const auto input = ToTransferInput(header, absl::InfiniteFuture());
  ASSERT_TRUE(input.ok()) << input.status();
  ASSERT_TRUE(input->source.pool.has_value());
  EXPECT_EQ(input->source.pool->pool_id, "abc");
  EXPECT_EQ(input->source.pool->generation, 7u);
  EXPECT_THAT(input->source.pool->pages, ::testing::ElementsAre(4));
  EXPECT_EQ(input->source.transport(), kShm);
  EXPECT_FALSE(input->spec.source_buffered);
  EXPECT_TRUE(input->streamed_source);
  EXPECT_FALSE(input->target.pool.has_value());
  EXPECT_TRUE(input->spec.target_buffered);
}

TEST(ConvertTest, APoolHasAPlanePerLayerAndComponent) {
  v1::RegisterPoolRequest request;
  *request.mutable_model() = Model();
  request.set_tokens_per_page(16);
  request.set_pages(3);
  for (uint64_t layer = 0; layer < 2; ++layer) {
    request.add_keys()->set_base_offset(100 * layer);
    request.add_values()->set_base_offset(100 * layer + 50);
  }
  const auto spec = ToPoolSpec(request);
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<uint64_t> offsets;
  for (const memory::PoolPlane& plane : spec->planes) offsets.push_back(plane.base_offset);
  EXPECT_THAT(offsets, ::testing::ElementsAre(0, 50, 100, 150));
  request.mutable_values()->RemoveLast();
  EXPECT_EQ(ToPoolSpec(request).status().message(), "values: expected 2, one per layer, got 1");
}

TEST(ConvertTest, EveryTenantHasAQuotaOfMemory) {
  v1::Config config;
  config.mutable_memory()->set_max_bytes(1000);
  config.add_tenants()->set_name("ana");
  config.add_tenants()->set_name("bo");
  config.mutable_tenants(1)->set_max_memory_bytes(300);
  const auto quota = ToRegistryOptions(config).tenant_bytes;
  EXPECT_EQ(quota("ana"), 1000u);
  EXPECT_EQ(quota("bo"), 300u);
  EXPECT_EQ(quota("stranger"), 1000u);
  config.mutable_memory()->set_max_tenant_bytes(500);
  EXPECT_EQ(ToRegistryOptions(config).tenant_bytes("ana"), 500u);
}

TEST(ConvertTest, AnUnknownAttentionKindIsLeftToTheVerdict) {
  v1::ModelSpec spec = Model();
  spec.mutable_geometry()->add_attention(v1::ATTENTION_KIND_FULL);
  spec.mutable_geometry()->add_attention(static_cast<v1::AttentionKind>(99));
  const auto core = ToModelSpec(spec, "source");
  ASSERT_TRUE(core.ok()) << core.status();
  EXPECT_EQ(core->geometry.attention[1], model::AttentionKind::kUnknown);
}

TEST(ConvertTest, EveryWireReasonHasTheSameNumberInCore) {
  for (int value = 0; v1::Reason_IsValid(value); ++value) {
    EXPECT_EQ(ToProto(static_cast<guard::Reason>(value)), value);
  }
  EXPECT_EQ(ToProto(guard::Reason::kCancelled), v1::REASON_INTERNAL);
}

TEST(ConvertTest, AnEventHoldsTheDecisionAndNoTenant) {
  engine::Decision decision;
  decision.reason = guard::Reason::kOverload;
  decision.artifact_digest = std::string(64, 'a');
  decision.stages[static_cast<size_t>(engine::Stage::kMap)] = absl::Milliseconds(3);
  const v1::DecisionEvent event = ToEvent(
      decision, {.request_id = "r", .pair = "p", .tokens = 7, .total = absl::Milliseconds(5)});
  EXPECT_EQ(event.schema(), "kvbridge.event/v1");
  EXPECT_EQ(event.reason_class(), v1::REASON_CLASS_CAPACITY);
  EXPECT_EQ(event.artifact(), std::string(12, 'a'));
  EXPECT_EQ(event.stage_ms().at("map"), 3);
  EXPECT_EQ(event.total_ms(), 5);
}

TEST(GrpcStatusTest, KeepsTheCodeAndCutsTheMessageBetweenCharacters) {
  const std::string text = std::string(1023, 'x') + "é and more";
  const grpc::Status status = ToGrpc(absl::DataLossError(text));
  EXPECT_EQ(status.error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(status.error_message(), std::string(1023, 'x'));
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_EQ(CodeName(grpc::DATA_LOSS), "DATA_LOSS");
}

}  // namespace
}  // namespace kvbridge::server
