// Between kvbridge.v1 and core: the one place that knows both vocabularies.
//
// What comes from the wire is refused, naming the field, expected and got, when it cannot be what
// it says: an enum that is unspecified or unknown, a count out of range. Counts are checked before
// anything is sized by them. What fields mean together is for core/guard to judge.
//
// Thread contract: pure functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/artifact/manifest.h"
#include "core/engine/decision.h"
#include "core/guard/reason.h"
#include "core/guard/route_policy.h"
#include "core/guard/transfer_spec.h"
#include "core/kv/tile_assembler.h"
#include "core/model/model_spec.h"
#include "core/plan/transfer_plan.h"
#include "kvbridge/v1/config.pb.h"
#include "kvbridge/v1/events.pb.h"
#include "kvbridge/v1/plan.pb.h"
#include "kvbridge/v1/transfer.pb.h"
#include "server/pooled_cache.h"
#include "server/trace_context.h"

namespace kvbridge::server {

class RouteTry;
struct RouteChange;

// How a selection's bytes move, as metrics say it.
inline constexpr absl::string_view kInline = "inline";
inline constexpr absl::string_view kShm = "shm";
inline constexpr absl::string_view kUcx = "ucx";

// Where a selection lies: in the stream, unless it names a pool, or lies at a peer.
struct Place {
  std::optional<PoolPlace> pool;
  bool remote = false;  // sent by another kvbridged; sources only
  bool mapped = false;  // and mapped there
  // [layers * 2] as kv::KvView::planes; empty unless the selection states scales.
  std::vector<std::vector<float>> scales;

  absl::string_view transport() const { return pool.has_value() ? kShm : kInline; }
};

// A transfer's header, understood.
struct TransferInput {
  guard::TransferSpec spec;  // of a source that is mapped already, both models are the target
  Place source;
  Place target;
  bool streamed_source = false;  // the source pool's pages are still being filled
};

absl::StatusOr<TransferInput> ToTransferInput(const v1::TransferHeader& header,
                                              absl::Time deadline);
absl::StatusOr<model::ModelSpec> ToModelSpec(const v1::ModelSpec& spec, absl::string_view path);
absl::StatusOr<kv::ChunkHeader> ToChunkHeader(const v1::TransferChunk& head);
absl::StatusOr<guard::RouteStage> ToStage(v1::RouteStage stage, absl::string_view path);
// Of a validated configuration.
guard::RoutePolicy ToPolicy(const v1::RouteConfig& route);
absl::Duration ToDuration(const google::protobuf::Duration& duration);
google::protobuf::Duration ToProto(absl::Duration duration);

v1::ModelSpec ToProto(const model::ModelSpec& spec);
v1::Outcome ToProto(guard::Outcome outcome);
guard::Outcome FromProto(v1::Outcome outcome);
v1::Reason ToProto(guard::Reason reason);
guard::Reason FromProto(v1::Reason reason);
v1::RouteStage ToProto(guard::RouteStage stage);
v1::Decision ToProto(const engine::Decision& decision);
// A peer's.
engine::Decision FromProto(const v1::Decision& decision);
guard::Refusal FromProto(const v1::SourceFailed& failed);
v1::PlanResponse ToProto(const plan::TransferPlan& plan);
// Of a transfer with this native tail; values below 1 mean 1.
v1::EvidenceSummary ToProto(const artifact::Provenance& provenance, int64_t native_tail);

// How a decision is told in logs and in WatchEvents.
struct DecisionContext {
  std::shared_ptr<RouteTry> attempt;  // null: the transfer was not tried
  std::string request_id;
  std::string pair;
  TraceContext trace;
  int64_t tokens = 0;
  absl::string_view source_transport = kInline;
  absl::string_view target_transport = kInline;
  v1::MapSide map_side = v1::MAP_SIDE_UNSPECIFIED;
  absl::Time time;
  absl::Duration total;
};
v1::DecisionEvent ToEvent(const engine::Decision& decision, const DecisionContext& context);
v1::RouteEvent ToEvent(const RouteChange& change, absl::Time time);

}  // namespace kvbridge::server
