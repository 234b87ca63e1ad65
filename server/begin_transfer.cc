#include "server/begin_transfer.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "core/base/utf8.h"
#include "core/device/copy_backend.h"
#include "core/metrics/metric_names.h"
#include "server/grpc_time.h"
#include "server/tenant.h"

namespace kvbridge::server {
namespace {

using guard::Fallback;
using guard::Outcome;
using guard::Reason;
using guard::Refusal;

constexpr size_t kMaxRequestId = 128;  // of what is logged when the request was refused for it

// Moves the refusal out of `from`, or its value to `to`.
template <typename T>
std::optional<Refusal> MoveTo(std::variant<T, Refusal> from, T* to) {
  if (auto* no = std::get_if<Refusal>(&from)) return std::move(*no);
  *to = std::get<T>(std::move(from));
  return std::nullopt;
}

// Where the edge pushes to. Without UCX here its chunks come in the stream.
std::optional<Refusal> OpenInbox(const TransferEnv& env, const guard::TransferSpec& spec,
                                 BegunTransfer* begun) {
  if (env.peers->push_address().empty()) return std::nullopt;
  const uint64_t all = spec.tokens * spec.source.geometry.token_bytes();
  auto inbox =
      env.peers->node()->Expect({.max_frame_bytes = std::min<uint64_t>(kMaxChunkBytes, all),
                                 .frames = env.peers->frames_in_flight()},
                                *env.buffers);
  if (!inbox.ok()) return Fallback(Reason::kOverload, inbox.status().message());
  begun->inbox = *std::move(inbox);
  return std::nullopt;
}

std::optional<Refusal> OpenSource(const TransferEnv& env, TransferInput& input,
                                  BegunTransfer* begun) {
  const guard::TransferSpec& spec = begun->transfer->spec();
  if (!input.source.pool.has_value()) {
    if (input.source.remote) {
      if (auto no = OpenInbox(env, spec, begun)) return no;
    }
    // Of one that is mapped, only what is covered comes.
    const int64_t end = input.source.mapped ? begun->transfer->covered_tokens() : spec.tokens;
    return MoveTo(
        InlineSource(spec.source.geometry, {spec.first_token, end}, std::move(input.source.scales),
                     env.engine->tile_tokens(), env.engine->tiles_in_flight(), env.buffers),
        &begun->source);
  }
  std::shared_ptr<const PooledCache> cache;
  auto pinned = PooledCache::Pin(env.memory,
                                 {.tenant = spec.tenant,
                                  .path = "source_selection",
                                  .model = spec.source,
                                  .tokens = spec.tokens},
                                 *std::move(input.source.pool));
  if (auto no = MoveTo(std::move(pinned), &cache)) return no;
  begun->source =
      PoolSource({spec.first_token, begun->transfer->covered_tokens()}, std::move(cache));
  if (input.streamed_source) return std::nullopt;
  v1::ReadyUpTo all;
  all.set_token_end(spec.tokens);
  return MoveTo(begun->source->Take(all), &begun->ready);
}

std::optional<Refusal> OpenTarget(const TransferEnv& env, TransferInput& input,
                                  BegunTransfer* begun) {
  const guard::TransferSpec& spec = begun->transfer->spec();
  if (!input.target.pool.has_value()) {
    begun->target = InlineTarget(spec, std::move(input.target.scales), env.buffers);
    return std::nullopt;
  }
  std::shared_ptr<const PooledCache> cache;
  auto pinned = PooledCache::Pin(env.memory,
                                 {.tenant = spec.tenant,
                                  .path = "target_selection",
                                  .model = spec.target,
                                  .tokens = spec.tokens,
                                  .write = true},
                                 *std::move(input.target.pool));
  if (auto no = MoveTo(std::move(pinned), &cache)) return no;
  begun->target = PoolTarget(begun->transfer->covered_tokens(), std::move(cache));
  return std::nullopt;
}

// Whoever mapped has asked its route, its policy and the artifact's evidence: this kvbridged needs
// none of them to write.
RouteTable::Choice ToBeMoved(const guard::TransferSpec& spec) {
  guard::RoutePolicy policy;
  policy.allow_unproven = true;
  policy.max_hops = std::numeric_limits<int32_t>::max();
  return {spec.route, policy,
          engine::ArtifactPin{
              .resident = std::make_shared<device::CopyMapper>(spec.artifact_digest, spec.target),
              .moves = true},
          nullptr};
}

}  // namespace

DecisionContext AboutTransfer(const v1::TransferHeader& header, TraceContext trace) {
  return {.request_id = std::string(base::Clip(header.request_id(), kMaxRequestId)),
          .pair = std::string(metrics::kOtherPair),
          .trace = std::move(trace),
          .tokens = std::max<int64_t>(0, header.source_selection().tokens())};
}

void DescribeTransfer(const TransferEnv& env, const engine::Transfer& transfer,
                      v1::TransferAccepted* accepted) {
  accepted->set_covered_tokens(transfer.covered_tokens());
  accepted->set_tile_tokens(env.engine->tile_tokens());
  accepted->set_artifact_digest(transfer.artifact_digest());
  v1::Estimate& expected = *accepted->mutable_expected_seconds();
  expected.Clear();
  expected.set_source("unmeasured");
  if (const auto seconds = transfer.expected_seconds()) {
    expected.set_value(*seconds);
    expected.set_source("measured");
  }
}

bool MapsAtSource(const RouteTable& routes, const TransferInput& input) {
  const model::KvGeometry& source = input.spec.source.geometry;
  const model::KvGeometry& target = input.spec.target.geometry;
  if (target.token_bytes() >= source.token_bytes()) return false;
  // Only the peer knows the scales of its pool.
  if (input.target.pool.has_value() && target.dtype == tensor::DType::kF8E4M3) return false;
  return routes.MayApply(input.spec);
}

bool StaysHere(const TransferEnv& env, const v1::TransferHeader& header) {
  if (header.peer().empty()) return true;
  if (env.peers->Find(header.peer()) == nullptr) return false;
  const auto input = ToTransferInput(header, absl::InfiniteFuture());
  return input.ok() && !input->target.pool.has_value() && MapsAtSource(*env.routes, *input);
}

std::variant<BegunTransfer, engine::Decision> BeginTransfer(
    const TransferEnv& env, const grpc::CallbackServerContext& context,
    const v1::TransferHeader& header, DecisionContext* about) {
  *about = AboutTransfer(header, std::move(about->trace));
  if (!header.peer().empty()) about->map_side = v1::MAP_SIDE_SOURCE;
  guard::TransferSpec unread;
  unread.route = std::string(base::Clip(header.route(), kMaxRequestId));
  unread.token_ids_sha256 = header.source_selection().token_ids_sha256();
  if (env.draining->load()) {
    return engine::Refused(Fallback(Reason::kDraining, "the server is shutting down"), unread);
  }
  auto input = ToTransferInput(header, FromGrpcTime(*env.clock, context.deadline()));
  if (!input.ok()) {
    return engine::Refused(Fallback(Reason::kInvalidRequest, input.status().message()), unread);
  }
  input->spec.tenant = TenantOf(context, header.tenant());
  return BeginTransfer(env, *std::move(input), about);
}

std::variant<BegunTransfer, engine::Decision> BeginTransfer(const TransferEnv& env,
                                                            TransferInput input,
                                                            DecisionContext* about) {
  about->source_transport = input.source.transport();
  about->target_transport = input.target.transport();
  auto choice = input.source.mapped ? ToBeMoved(input.spec) : env.routes->Choose(input.spec);
  input.spec.route = choice.route;
  if (!choice.route.empty() && !input.source.mapped) about->pair = choice.route;
  about->attempt = std::move(choice.attempt);
  if (const auto* no = std::get_if<Refusal>(&choice.pin)) return engine::Refused(*no, input.spec);

  auto admitted = env.engine->Begin(input.spec, choice.policy,
                                    std::get<engine::ArtifactPin>(std::move(choice.pin)));
  if (auto* decision = std::get_if<engine::Decision>(&admitted)) return std::move(*decision);
  BegunTransfer begun{.transfer = std::get<std::shared_ptr<engine::Transfer>>(admitted)};
  std::optional<Refusal> no = OpenSource(env, input, &begun);
  if (!no.has_value()) no = OpenTarget(env, input, &begun);
  if (begun.inbox != nullptr) about->source_transport = kUcx;
  if (!no.has_value()) return begun;
  begun.transfer->Cancel(*std::move(no));
  return begun.transfer->Finish().value();
}

}  // namespace kvbridge::server
