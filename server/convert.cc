#include "server/convert.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/guard/pre_check.h"
#include "core/guard/reason.h"
#include "server/route_watch.h"

namespace kvbridge::server {
namespace {

constexpr int32_t kMaxCount = 4096;  // of layers, heads and dimensions

static_assert(static_cast<int>(guard::Reason::kInternal) == v1::REASON_INTERNAL);
static_assert(static_cast<int>(guard::Reason::kInvalidRequest) == v1::REASON_INVALID_REQUEST);
static_assert(static_cast<int>(guard::ReasonClass::kClient) == v1::REASON_CLASS_CLIENT);
static_assert(static_cast<int>(guard::ReasonClass::kInternal) == v1::REASON_CLASS_INTERNAL);

template <typename T>
absl::Status Wrong(absl::string_view path, absl::string_view expected, const T& got) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": expected ", expected, ", got ", got));
}

absl::Status CheckCount(int64_t count, absl::string_view path) {
  if (count >= 1 && count <= kMaxCount) return absl::OkStatus();
  return Wrong(path, absl::StrCat("1 to ", kMaxCount), count);
}

// A list that may be left out, or has one entry for each of `count` things.
absl::Status CheckList(int64_t size, int64_t count, absl::string_view path) {
  if (size == 0 || size == count) return absl::OkStatus();
  return Wrong(path, absl::StrCat("0 or ", count, " entries"), size);
}

absl::StatusOr<tensor::DType> ToDType(v1::ElementType type, absl::string_view path) {
  switch (type) {
    case v1::ELEMENT_TYPE_BF16:
      return tensor::DType::kBf16;
    case v1::ELEMENT_TYPE_F16:
      return tensor::DType::kF16;
    case v1::ELEMENT_TYPE_F32:
      return tensor::DType::kF32;
    case v1::ELEMENT_TYPE_F8_E4M3:
      return tensor::DType::kF8E4M3;
    default:
      return Wrong(path, "bf16, f16, f32 or f8_e4m3", static_cast<int>(type));
  }
}

v1::ElementType ToProto(tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::kBf16:
      return v1::ELEMENT_TYPE_BF16;
    case tensor::DType::kF16:
      return v1::ELEMENT_TYPE_F16;
    case tensor::DType::kF32:
      return v1::ELEMENT_TYPE_F32;
    case tensor::DType::kF8E4M3:
      return v1::ELEMENT_TYPE_F8_E4M3;
  }
  return v1::ELEMENT_TYPE_UNSPECIFIED;
}

// A kind that this version does not know is kUnknown: core answers it UNSUPPORTED, by layer.
absl::StatusOr<model::AttentionKind> ToAttention(int kind, absl::string_view path) {
  switch (kind) {
    case v1::ATTENTION_KIND_UNSPECIFIED:
      return Wrong(path, "an attention kind", "unspecified");
    case v1::ATTENTION_KIND_FULL:
      return model::AttentionKind::kFull;
    case v1::ATTENTION_KIND_SLIDING:
      return model::AttentionKind::kSliding;
    case v1::ATTENTION_KIND_MLA:
      return model::AttentionKind::kMla;
    case v1::ATTENTION_KIND_SSM:
      return model::AttentionKind::kSsm;
    case v1::ATTENTION_KIND_SHARED_KV:
      return model::AttentionKind::kSharedKv;
    default:
      return model::AttentionKind::kUnknown;
  }
}

v1::AttentionKind ToProto(model::AttentionKind kind) {
  switch (kind) {
    case model::AttentionKind::kFull:
      return v1::ATTENTION_KIND_FULL;
    case model::AttentionKind::kSliding:
      return v1::ATTENTION_KIND_SLIDING;
    case model::AttentionKind::kMla:
      return v1::ATTENTION_KIND_MLA;
    case model::AttentionKind::kSsm:
      return v1::ATTENTION_KIND_SSM;
    case model::AttentionKind::kSharedKv:
      return v1::ATTENTION_KIND_SHARED_KV;
    case model::AttentionKind::kUnknown:
      break;
  }
  return v1::ATTENTION_KIND_UNSPECIFIED;
}

model::ModelIdentity ToIdentity(const v1::ModelIdentity& identity) {
  return {.family = identity.family(),
          .model_id = identity.model_id(),
          .revision = identity.revision(),
          .tokenizer_sha256 = identity.tokenizer_sha256(),
          .chat_template_sha256 = identity.chat_template_sha256(),
          .adapter_digest = identity.adapter_digest(),
          .modality_digest = identity.modality_digest()};
}

absl::StatusOr<model::KvGeometry> ToGeometry(const v1::KvGeometry& geometry,
                                             const std::string& path) {
  KVB_RETURN_IF_ERROR(CheckCount(geometry.layers(), path + ".layers"));
  KVB_RETURN_IF_ERROR(CheckCount(geometry.kv_heads(), path + ".kv_heads"));
  KVB_RETURN_IF_ERROR(CheckCount(geometry.head_dim(), path + ".head_dim"));
  KVB_RETURN_IF_ERROR(CheckList(geometry.attention_size(), geometry.layers(), path + ".attention"));
  KVB_RETURN_IF_ERROR(
      CheckList(geometry.head_order_size(), geometry.kv_heads(), path + ".head_order"));
  model::KvGeometry out;
  out.layers = geometry.layers();
  out.kv_heads = geometry.kv_heads();
  out.head_dim = geometry.head_dim();
  KVB_ASSIGN_OR_RETURN(out.dtype, ToDType(geometry.element_type(), path + ".element_type"));
  for (int i = 0; i < geometry.attention_size(); ++i) {
    KVB_ASSIGN_OR_RETURN(
        const model::AttentionKind kind,
        ToAttention(geometry.attention(i), absl::StrCat(path, ".attention[", i, "]")));
    out.attention.push_back(kind);
  }
  out.head_order.assign(geometry.head_order().begin(), geometry.head_order().end());
  out.tp_degree = geometry.tp_degree() == 0 ? 1 : geometry.tp_degree();
  out.tp_rank = geometry.tp_rank();
  return out;
}

absl::StatusOr<model::RopeParams> ToRope(const v1::RopeParams& rope, const std::string& path) {
  model::RopeParams out;
  if (rope.rotary_dim() < 0 || rope.rotary_dim() > kMaxCount) {
    return Wrong(path + ".rotary_dim", absl::StrCat("0 to ", kMaxCount), rope.rotary_dim());
  }
  if (rope.inv_freq_size() != rope.rotary_dim() / 2) {
    return Wrong(path + ".inv_freq", absl::StrCat(rope.rotary_dim() / 2, " entries"),
                 rope.inv_freq_size());
  }
  switch (rope.pairing()) {
    case v1::PAIRING_HALF:
      out.pairing = model::Pairing::kHalf;
      break;
    case v1::PAIRING_INTERLEAVED:
      out.pairing = model::Pairing::kInterleaved;
      break;
    default:
      if (rope.rotary_dim() == 0) break;
      return Wrong(path + ".pairing", "half or interleaved", static_cast<int>(rope.pairing()));
  }
  out.inv_freq.assign(rope.inv_freq().begin(), rope.inv_freq().end());
  out.attention_factor = rope.attention_factor() == 0 ? 1.0 : rope.attention_factor();
  out.rotary_dim = rope.rotary_dim();
  return out;
}

v1::RopeParams ToProto(const model::RopeParams& rope) {
  v1::RopeParams out;
  out.mutable_inv_freq()->Assign(rope.inv_freq.begin(), rope.inv_freq.end());
  out.set_attention_factor(rope.attention_factor);
  out.set_rotary_dim(rope.rotary_dim);
  out.set_pairing(rope.pairing == model::Pairing::kHalf ? v1::PAIRING_HALF
                                                        : v1::PAIRING_INTERLEAVED);
  return out;
}

absl::StatusOr<std::vector<std::vector<float>>> ToScales(const v1::KvSelection& selection,
                                                         const model::KvGeometry& geometry,
                                                         const std::string& path) {
  KVB_RETURN_IF_ERROR(CheckList(selection.scales_size(), geometry.layers, path + ".scales"));
  std::vector<std::vector<float>> scales;
  for (const v1::LayerScales& layer : selection.scales()) {
    for (const auto* list : {&layer.key(), &layer.value()}) {
      if (list->size() != 1 && list->size() != geometry.kv_heads) {
        return Wrong(absl::StrCat(path, ".scales[", scales.size() / 2, "]"),
                     absl::StrCat("1 or ", geometry.kv_heads, " entries"), list->size());
      }
      scales.emplace_back(list->begin(), list->end());
    }
  }
  if (scales.empty()) scales.resize(2 * geometry.layers);
  for (size_t i = 0; i < scales.size(); ++i) {
    KVB_RETURN_IF_ERROR(kv::ValidateScales(geometry.dtype, geometry.kv_heads, scales[i],
                                           absl::StrCat(path, ".scales[", i / 2, "]")));
  }
  if (geometry.dtype != tensor::DType::kF8E4M3) scales.clear();
  return scales;
}

absl::StatusOr<Place> ToPlace(const v1::KvSelection& selection, const model::KvGeometry& geometry,
                              const std::string& path) {
  Place place;
  switch (selection.location_case()) {
    case v1::KvSelection::kRemote:
      if (path != "source_selection") return Wrong(path + ".remote", "a source", "a target");
      place.remote = true;
      place.mapped = selection.remote().mapped();
      if (place.mapped) return place;
      [[fallthrough]];
    case v1::KvSelection::kInline: {
      KVB_ASSIGN_OR_RETURN(place.scales, ToScales(selection, geometry, path));
      return place;
    }
    case v1::KvSelection::kPool: {
      if (selection.scales_size() > 0) {
        return Wrong(path + ".scales", "none, since the pool has them", selection.scales_size());
      }
      const v1::PoolLocation& pool = selection.pool();
      place.pool =
          PoolPlace{pool.pool_id(), pool.generation(), {pool.pages().begin(), pool.pages().end()}};
      return place;
    }
    default:
      return Wrong(path + ".location", "inline or pool",
                   static_cast<int>(selection.location_case()));
  }
}

absl::StatusOr<guard::KeyState> ToKeyState(v1::KeyState state, absl::string_view path) {
  switch (state) {
    case v1::KEY_STATE_ROPED:
      return guard::KeyState::kRoped;
    case v1::KEY_STATE_UNROPED:
      return guard::KeyState::kUnroped;
    default:
      return Wrong(path, "roped or unroped", static_cast<int>(state));
  }
}

// What google/protobuf/duration.proto allows: one sign, and nanoseconds below one second.
bool IsValid(const google::protobuf::Duration& duration) {
  constexpr int32_t kSecond = 1'000'000'000;
  const bool one_sign = duration.seconds() == 0 || duration.nanos() == 0 ||
                        (duration.seconds() < 0) == (duration.nanos() < 0);
  return one_sign && duration.nanos() > -kSecond && duration.nanos() < kSecond;
}

absl::Status ReadLimits(const v1::TransferLimits& limits, guard::TransferSpec* spec) {
  if (limits.has_max_latency()) {
    if (!IsValid(limits.max_latency())) {
      return Wrong("limits.max_latency", "seconds and nanos of one sign, nanos below a second",
                   absl::StrCat(limits.max_latency().seconds(), " s and ",
                                limits.max_latency().nanos(), " ns"));
    }
    spec->max_latency = ToDuration(limits.max_latency());
    if (*spec->max_latency < absl::ZeroDuration()) {
      return Wrong("limits.max_latency", "at least 0s", absl::FormatDuration(*spec->max_latency));
    }
  }
  if (limits.max_covered_tokens() < 0) {
    return Wrong("limits.max_covered_tokens", "at least 0", limits.max_covered_tokens());
  }
  spec->max_covered_tokens = limits.max_covered_tokens();
  spec->native_tail = limits.native_tail();
  switch (limits.overflow()) {
    case v1::OVERFLOW_POLICY_UNSPECIFIED:
    case v1::OVERFLOW_POLICY_FAIL:
      spec->overflow = guard::OverflowPolicy::kFail;
      return absl::OkStatus();
    case v1::OVERFLOW_POLICY_SATURATE:
      spec->overflow = guard::OverflowPolicy::kSaturate;
      return absl::OkStatus();
    default:
      return Wrong("limits.overflow", "fail or saturate", static_cast<int>(limits.overflow()));
  }
}

absl::Status ReadSelection(const v1::KvSelection& selection, guard::TransferSpec* spec) {
  KVB_RETURN_IF_ERROR(CheckList(selection.positions().list_size(), selection.tokens(),
                                "source_selection.positions.list"));
  KVB_ASSIGN_OR_RETURN(spec->key_state,
                       ToKeyState(selection.key_state(), "source_selection.key_state"));
  spec->tokens = selection.tokens();
  spec->position_start = selection.positions().start();
  spec->position_list.assign(selection.positions().list().begin(),
                             selection.positions().list().end());
  spec->token_ids_sha256 = selection.token_ids_sha256();
  return absl::OkStatus();
}

// What the edge has mapped is the target's cache, to be written and nothing else.
absl::Status ReadMapped(const std::string& artifact_digest, TransferInput* input) {
  guard::TransferSpec& spec = input->spec;
  if (!input->target.pool.has_value()) {
    return Wrong("target_selection.location", "a pool for a source that is mapped", "another");
  }
  // Its scales are the pool's, which the edge does not know.
  if (spec.target.geometry.dtype == tensor::DType::kF8E4M3) {
    return Wrong("target.geometry.element_type", "one without scales for a source that is mapped",
                 tensor::Name(spec.target.geometry.dtype));
  }
  if (!guard::IsSha256(artifact_digest)) {
    return Wrong("artifact_digest", "that of the artifact that mapped, 64 lower-case hex digits",
                 absl::StrCat(artifact_digest.size(), " bytes"));
  }
  spec.source = spec.target;
  return absl::OkStatus();
}

v1::Estimate ToProto(const plan::Estimate& estimate) {
  v1::Estimate out;
  if (estimate.value.has_value()) out.set_value(*estimate.value);
  out.set_source(std::string(plan::Name(estimate.provenance)));
  return out;
}

constexpr char kEventSchema[] = "kvbridge.event/v1";

google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  google::protobuf::Timestamp timestamp;
  const absl::Duration since = time - absl::UnixEpoch();
  timestamp.set_seconds(absl::ToInt64Seconds(since));
  timestamp.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(since % absl::Seconds(1))));
  return timestamp;
}

}  // namespace

absl::StatusOr<model::ModelSpec> ToModelSpec(const v1::ModelSpec& spec, absl::string_view path) {
  const std::string at(path);
  model::ModelSpec out;
  out.identity = ToIdentity(spec.identity());
  KVB_ASSIGN_OR_RETURN(out.geometry, ToGeometry(spec.geometry(), at + ".geometry"));
  KVB_ASSIGN_OR_RETURN(out.rope.params, ToRope(spec.rope().params(), at + ".rope.params"));
  for (const auto& [layer, rope] : spec.rope().layer_overrides()) {
    const std::string where = absl::StrCat(at, ".rope.layer_overrides[", layer, "]");
    if (layer < 0 || layer >= out.geometry.layers) {
      return Wrong(where, absl::StrCat("a layer from 0 to ", out.geometry.layers - 1), layer);
    }
    KVB_ASSIGN_OR_RETURN(out.rope.layer_overrides[layer], ToRope(rope, where));
  }
  out.rope.max_position = spec.rope().max_position();
  return out;
}

absl::StatusOr<TransferInput> ToTransferInput(const v1::TransferHeader& header,
                                              absl::Time deadline) {
  TransferInput input;
  guard::TransferSpec& spec = input.spec;
  spec.request_id = header.request_id();
  spec.tenant = header.tenant();
  spec.route = header.route();
  if (!header.has_source()) return Wrong("source", "a model", "nothing");
  if (!header.has_target()) return Wrong("target", "a model", "nothing");
  KVB_ASSIGN_OR_RETURN(spec.source, ToModelSpec(header.source(), "source"));
  KVB_ASSIGN_OR_RETURN(spec.target, ToModelSpec(header.target(), "target"));
  KVB_RETURN_IF_ERROR(ReadSelection(header.source_selection(), &spec));
  KVB_ASSIGN_OR_RETURN(
      input.source, ToPlace(header.source_selection(), spec.source.geometry, "source_selection"));
  KVB_ASSIGN_OR_RETURN(
      input.target, ToPlace(header.target_selection(), spec.target.geometry, "target_selection"));
  spec.source_buffered = !input.source.pool.has_value();
  spec.target_buffered = !input.target.pool.has_value();
  input.streamed_source = header.streamed_source();
  if (input.streamed_source && spec.source_buffered) {
    return Wrong("streamed_source", "a source_selection in a pool", "an inline one");
  }
  KVB_RETURN_IF_ERROR(ReadLimits(header.limits(), &spec));
  spec.prompt_tokens = header.prompt_tokens();
  spec.hops = header.hops();
  spec.first_token = header.first_token();
  spec.artifact_digest = header.artifact_digest();
  spec.deadline = deadline;
  if (input.source.mapped) KVB_RETURN_IF_ERROR(ReadMapped(header.artifact_digest(), &input));
  return input;
}

absl::StatusOr<kv::ChunkHeader> ToChunkHeader(const v1::TransferChunk& head) {
  kv::ChunkHeader chunk;
  chunk.layers = {head.layer_begin(), head.layer_end()};
  chunk.tokens = {head.token_begin(), head.token_end()};
  switch (head.component()) {
    case v1::COMPONENT_KEY:
      chunk.component = kv::Component::kKey;
      return chunk;
    case v1::COMPONENT_VALUE:
      chunk.component = kv::Component::kValue;
      return chunk;
    default:
      return Wrong("chunk.component", "key or value", static_cast<int>(head.component()));
  }
}

absl::StatusOr<guard::RouteStage> ToStage(v1::RouteStage stage, absl::string_view path) {
  switch (stage) {
    case v1::ROUTE_STAGE_OFF:
      return guard::RouteStage::kOff;
    case v1::ROUTE_STAGE_SHADOW:
      return guard::RouteStage::kShadow;
    case v1::ROUTE_STAGE_CANARY:
      return guard::RouteStage::kCanary;
    case v1::ROUTE_STAGE_LIVE:
      return guard::RouteStage::kLive;
    default:
      return Wrong(path, "off, shadow, canary or live", static_cast<int>(stage));
  }
}

guard::RoutePolicy ToPolicy(const v1::RouteConfig& route) {
  const v1::PolicyConfig& policy = route.policy();
  guard::RoutePolicy out;
  out.stage = ToStage(route.stage(), "stage").value_or(guard::RouteStage::kOff);
  out.canary_share = route.canary_share();
  out.allow_unproven = route.allow_unproven();
  if (policy.has_max_latency()) out.max_latency = ToDuration(policy.max_latency());
  out.max_abs = policy.max_abs();
  out.max_covered_tokens = policy.max_covered_tokens();
  out.min_covered_tokens = policy.min_covered_tokens();
  out.native_tail = policy.native_tail();
  out.max_hops = policy.max_hops();
  out.shadow_rate = policy.shadow_rate();
  out.salt = policy.salt();
  out.drill = {FromProto(route.drill().reason()), route.drill().share()};
  return out;
}

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration out;
  out.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  out.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return out;
}

v1::ModelSpec ToProto(const model::ModelSpec& spec) {
  v1::ModelSpec out;
  v1::ModelIdentity& identity = *out.mutable_identity();
  identity.set_family(spec.identity.family);
  identity.set_model_id(spec.identity.model_id);
  identity.set_revision(spec.identity.revision);
  identity.set_tokenizer_sha256(spec.identity.tokenizer_sha256);
  identity.set_chat_template_sha256(spec.identity.chat_template_sha256);
  identity.set_adapter_digest(spec.identity.adapter_digest);
  identity.set_modality_digest(spec.identity.modality_digest);
  v1::KvGeometry& geometry = *out.mutable_geometry();
  geometry.set_layers(spec.geometry.layers);
  geometry.set_kv_heads(spec.geometry.kv_heads);
  geometry.set_head_dim(spec.geometry.head_dim);
  geometry.set_element_type(ToProto(spec.geometry.dtype));
  for (const auto kind : spec.geometry.attention) geometry.add_attention(ToProto(kind));
  geometry.mutable_head_order()->Assign(spec.geometry.head_order.begin(),
                                        spec.geometry.head_order.end());
  geometry.set_tp_degree(spec.geometry.tp_degree);
  geometry.set_tp_rank(spec.geometry.tp_rank);
  *out.mutable_rope()->mutable_params() = ToProto(spec.rope.params);
  for (const auto& [layer, rope] : spec.rope.layer_overrides) {
    (*out.mutable_rope()->mutable_layer_overrides())[layer] = ToProto(rope);
  }
  out.mutable_rope()->set_max_position(spec.rope.max_position);
  return out;
}

v1::Outcome ToProto(guard::Outcome outcome) {
  switch (outcome) {
    case guard::Outcome::kApplied:
      return v1::OUTCOME_APPLIED;
    case guard::Outcome::kFallbackReprefill:
      return v1::OUTCOME_FALLBACK_REPREFILL;
    case guard::Outcome::kUnsupported:
      return v1::OUTCOME_UNSUPPORTED;
  }
  return v1::OUTCOME_UNSPECIFIED;
}

// Reasons that have no word on the wire never leave the server; said by mistake, they are our bug.
v1::Reason ToProto(guard::Reason reason) {
  const auto value = static_cast<int>(reason);
  return v1::Reason_IsValid(value) ? static_cast<v1::Reason>(value) : v1::REASON_INTERNAL;
}

v1::RouteStage ToProto(guard::RouteStage stage) {
  switch (stage) {
    case guard::RouteStage::kOff:
      return v1::ROUTE_STAGE_OFF;
    case guard::RouteStage::kShadow:
      return v1::ROUTE_STAGE_SHADOW;
    case guard::RouteStage::kCanary:
      return v1::ROUTE_STAGE_CANARY;
    case guard::RouteStage::kLive:
      return v1::ROUTE_STAGE_LIVE;
  }
  return v1::ROUTE_STAGE_UNSPECIFIED;
}

v1::Decision ToProto(const engine::Decision& decision) {
  v1::Decision out;
  out.set_outcome(ToProto(decision.outcome));
  out.set_reason(ToProto(decision.reason));
  out.set_reason_class(static_cast<v1::ReasonClass>(guard::ClassOf(decision.reason)));
  out.set_detail(base::ValidUtf8(decision.detail));
  out.set_covered_tokens(decision.covered_tokens);
  out.set_artifact_digest(decision.artifact_digest);
  out.set_hops(decision.hops);
  out.set_approximate(decision.approximate);
  out.set_salt(decision.salt);
  for (size_t i = 0; i < engine::kStageCount; ++i) {
    v1::StageTime& stage = *out.add_stages();
    stage.set_stage(std::string(engine::Name(static_cast<engine::Stage>(i))));
    stage.set_seconds(absl::ToDoubleSeconds(decision.stages[i]));
  }
  out.set_bytes_in(decision.bytes_in);
  out.set_bytes_out(decision.bytes_out);
  out.set_max_abs(decision.max_abs);
  out.set_saturated_elements(decision.saturated_elements);
  out.set_shadow_selected(decision.shadow_selected);
  out.mutable_dirty_pages()->Assign(decision.dirty_pages.begin(), decision.dirty_pages.end());
  out.set_token_ids_sha256(decision.token_ids_sha256);
  out.set_route(decision.route);
  return out;
}

v1::PlanResponse ToProto(const plan::TransferPlan& plan) {
  v1::PlanResponse out;
  out.set_worth_it(plan.worth_it);
  out.set_reason(ToProto(plan.reason));
  out.set_detail(base::ValidUtf8(plan.detail));
  out.set_covered_tokens(plan.covered_tokens);
  out.set_bytes_in(plan.bytes_in);
  out.set_bytes_out(plan.bytes_out);
  out.set_map_flops(plan.map_flops);
  *out.mutable_map_seconds() = ToProto(plan.map_seconds);
  *out.mutable_move_seconds() = ToProto(plan.move_seconds);
  *out.mutable_total_seconds() = ToProto(plan.total_seconds);
  *out.mutable_prefill_seconds() = ToProto(plan.prefill_seconds);
  *out.mutable_break_even_tokens() = ToProto(plan.break_even_tokens);
  return out;
}

v1::EvidenceSummary ToProto(const artifact::Provenance& provenance, int64_t native_tail) {
  v1::EvidenceSummary out;
  out.set_verdict(std::string(artifact::Name(provenance.verdict())));
  const auto measured = [](const std::optional<double>& value, v1::Estimate* estimate) {
    if (value.has_value()) estimate->set_value(*value);
    estimate->set_source(value.has_value() ? "measured" : "unmeasured");
  };
  const artifact::Quality quality =
      artifact::QualityAt(provenance, std::max<int64_t>(native_tail, 1));
  measured(quality.kl_nats, out.mutable_kl_nats());
  measured(quality.gap_recovered, out.mutable_gap_recovered());
  if (provenance.evidence) out.set_provenance(provenance.evidence->provenance);
  return out;
}

v1::RouteEvent ToEvent(const RouteChange& change, absl::Time time) {
  v1::RouteEvent event;
  event.set_schema(kEventSchema);
  *event.mutable_time() = ToTimestamp(time);
  event.set_pair(change.pair);
  event.set_what(change.what);
  event.set_from(change.from);
  event.set_to(change.to);
  event.set_cause(change.cause);
  event.set_detail(change.detail);
  return event;
}

v1::DecisionEvent ToEvent(const engine::Decision& decision, const DecisionContext& context) {
  v1::DecisionEvent event;
  event.set_schema(kEventSchema);
  *event.mutable_time() = ToTimestamp(context.time);
  event.set_request_id(context.request_id);
  event.set_pair(context.pair);
  event.set_outcome(ToProto(decision.outcome));
  event.set_reason(ToProto(decision.reason));
  event.set_reason_class(static_cast<v1::ReasonClass>(guard::ClassOf(decision.reason)));
  event.set_detail(base::ValidUtf8(decision.detail));
  event.set_tokens(context.tokens);
  event.set_covered_tokens(decision.covered_tokens);
  event.set_artifact(decision.artifact_digest.substr(0, 12));
  for (size_t i = 0; i < engine::kStageCount; ++i) {
    (*event.mutable_stage_ms())[std::string(engine::Name(static_cast<engine::Stage>(i)))] =
        absl::ToDoubleMilliseconds(decision.stages[i]);
  }
  event.set_total_ms(absl::ToDoubleMilliseconds(context.total));
  event.set_trace_id(context.trace.trace_id);
  event.set_span_id(context.trace.span_id);
  return event;
}

}  // namespace kvbridge::server
