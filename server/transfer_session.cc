#include "server/transfer_session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/kvbridge/v1/crc32c.h"
#include "server/grpc_status.h"

namespace kvbridge::server {
namespace {

using guard::Fallback;
using guard::Outcome;
using guard::Reason;
using guard::Refusal;

const metrics::RpcMethod kMethod{"kvbridge.v1.KvBridge", "Transfer", "bidi_stream"};
constexpr size_t kMaxRequestId = 128;  // of what is logged when the request was refused for it

// What a header's conversion found wrong. A plane that this version lacks will not come by trying
// again.
Refusal FromHeader(const absl::Status& status) {
  Refusal refusal = Fallback(Reason::kInvalidRequest, status.message());
  if (absl::IsUnimplemented(status)) refusal.outcome = Outcome::kUnsupported;
  return refusal;
}

// What the assembler found wrong with a chunk.
Refusal FromAssembler(const absl::Status& status) {
  if (absl::IsDataLoss(status)) return Fallback(Reason::kTransport, status.message());
  return Fallback(absl::IsResourceExhausted(status) ? Reason::kOverload : Reason::kShapeMismatch,
                  absl::StrCat("chunk: ", status.message()));
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

std::string TraceOf(const grpc::CallbackServerContext& context) {
  const auto it = context.client_metadata().find("traceparent");
  if (it == context.client_metadata().end()) return "";
  return TraceIdOf({it->second.data(), it->second.size()});
}

}  // namespace

TransferSession* TransferSession::Start(const TransferEnv& env,
                                        grpc::CallbackServerContext* context) {
  std::shared_ptr<TransferSession> session(new TransferSession(env, context));
  session->self_ = session;
  env.recorder->RpcStarted(kMethod);
  base::MutexLock lock(&session->mutex_);
  session->Pump();
  return session.get();
}

TransferSession::TransferSession(const TransferEnv& env, grpc::CallbackServerContext* context)
    : env_(env),
      context_(context),
      started_(env.clock->Now()),
      tile_limit_(env.engine->tiles_in_flight()) {}

// --- in

// `reading_` stays set until the message is dealt with: no other thread may start the next read
// while the assembler is in use.
void TransferSession::OnReadDone(bool ok) {
  {
    base::MutexLock lock(&mutex_);
    if (phase_ == Phase::kClosing || phase_ == Phase::kFinished) return;
    input_ended_ = !ok;
    moved_ = env_.clock->Now();
  }
  if (ok) {
    TakeMessage();
  } else {
    EndInput();
  }
  base::MutexLock lock(&mutex_);
  reading_ = false;
  Pump();
}

void TransferSession::TakeMessage() {
  const auto message = wire::ParseRequest(incoming_);
  incoming_.Clear();
  if (!message.ok()) {
    base::MutexLock lock(&mutex_);
    Malformed(message.status());
  } else if (const auto* header = std::get_if<v1::TransferHeader>(&*message)) {
    TakeHeader(*header);
  } else {
    TakeChunk(std::get<wire::ReceivedChunk>(*message));
  }
}

void TransferSession::TakeHeader(const v1::TransferHeader& header) {
  {
    base::MutexLock lock(&mutex_);
    if (phase_ != Phase::kHeader) {
      Refuse(Fallback(Reason::kInvalidRequest, "header: expected chunks after it, got a second"));
      return;
    }
    about_.request_id = header.request_id().substr(0, kMaxRequestId);
    about_.pair = std::string(metrics::kOtherPair);
    about_.trace_id = TraceOf(*context_);
    about_.tokens = std::max<int64_t>(0, header.source_selection().tokens());
  }
  auto begun = Begin(header);
  base::MutexLock lock(&mutex_);
  if (phase_ != Phase::kHeader) return;  // the caller went away meanwhile
  if (auto* transfer = std::get_if<std::shared_ptr<engine::Transfer>>(&begun)) {
    Accept(std::move(*transfer));
  } else {
    Decide(std::get<engine::Decision>(begun));
  }
}

std::variant<std::shared_ptr<engine::Transfer>, engine::Decision> TransferSession::Begin(
    const v1::TransferHeader& header) {
  guard::TransferSpec unread;
  unread.route = header.route().substr(0, kMaxRequestId);
  unread.token_ids_sha256 = header.source_selection().token_ids_sha256();
  if (env_.draining->load()) {
    return engine::Refused(Fallback(Reason::kDraining, "the server is shutting down"), unread);
  }
  auto input = ToTransferInput(header, DeadlineOf(*context_));
  if (!input.ok()) return engine::Refused(FromHeader(input.status()), unread);
  input_ = *std::move(input);
  auto choice = env_.routes->Choose(input_.spec);
  input_.spec.route = choice.route;
  {
    base::MutexLock lock(&mutex_);
    if (!choice.route.empty()) about_.pair = choice.route;
  }
  if (const auto* no = std::get_if<Refusal>(&choice.pin)) {
    return engine::Refused(*no, input_.spec);
  }
  return env_.engine->Begin(input_.spec, choice.policy,
                            std::get<engine::ArtifactPin>(std::move(choice.pin)));
}

void TransferSession::Accept(std::shared_ptr<engine::Transfer> transfer) {
  transfer_ = std::move(transfer);
  phase_ = Phase::kStreaming;
  const model::KvGeometry& geometry = input_.spec.source.geometry;
  const int64_t tile_tokens = env_.engine->tile_tokens();
  auto assembler = kv::TileAssembler::Create(
      {.dtype = geometry.dtype,
       .layers = geometry.layers,
       .kv_heads = geometry.kv_heads,
       .head_dim = geometry.head_dim,
       .tokens = input_.spec.tokens,
       .tile_tokens = tile_tokens,
       .max_open_bytes = tile_limit_ * tile_tokens * geometry.token_bytes(),
       .scales = input_.source_scales},
      env_.buffers);
  if (!assembler.ok()) return Refuse(FromAssembler(assembler.status()));
  assembler_.emplace(*std::move(assembler));
  moved_ = env_.clock->Now();
  SetAlarm();
  v1::TransferEvent event;
  v1::TransferAccepted& accepted = *event.mutable_accepted();
  accepted.set_covered_tokens(transfer_->covered_tokens());
  accepted.set_tile_tokens(tile_tokens);
  accepted.set_plane(v1::PLANE_INLINE);
  accepted.set_artifact_digest(transfer_->artifact_digest());
  accepted.mutable_expected_seconds()->set_source("unmeasured");
  if (const auto seconds = transfer_->expected_seconds()) {
    accepted.mutable_expected_seconds()->set_value(*seconds);
    accepted.mutable_expected_seconds()->set_source("measured");
  }
  Send({wire::Serialize(event), 0}, nullptr);
}

// Wakes for the transfer's own end, and to see whether the stream still moves.
void TransferSession::SetAlarm() {
  absl::Time wake = moved_ + env_.idle_timeout;
  if (phase_ == Phase::kStreaming) wake = std::min(wake, transfer_->stop_at());
  alarm_ = std::make_unique<grpc::Alarm>();
  // Weak: the alarm is a member, and keeps its callback.
  alarm_->Set(absl::ToChronoTime(wake), [weak = weak_from_this()](bool fired) {
    const auto self = weak.lock();
    if (self != nullptr && fired) self->OnAlarm();
  });
}

void TransferSession::OnAlarm() {
  base::MutexLock lock(&mutex_);
  if (phase_ == Phase::kFinished) return;
  const absl::Time now = env_.clock->Now();
  if (now - moved_ >= env_.idle_timeout) {
    if (phase_ == Phase::kClosing) return context_->TryCancel();
    moved_ = now;
    Refuse(Fallback(Reason::kTransport, absl::StrCat("stream: nothing was sent or read for ",
                                                     absl::FormatDuration(env_.idle_timeout))));
  }
  Pump();
  if (phase_ != Phase::kFinished) SetAlarm();
}

void TransferSession::TakeChunk(const wire::ReceivedChunk& chunk) {
  {
    base::MutexLock lock(&mutex_);
    if (phase_ == Phase::kHeader) {
      Malformed(absl::InvalidArgumentError("chunk: expected the header first"));
    }
    if (phase_ != Phase::kStreaming) return;
  }
  std::vector<kv::Tile> complete;
  const std::optional<Refusal> refusal = Assemble(chunk, &complete);
  base::MutexLock lock(&mutex_);
  if (phase_ != Phase::kStreaming) return;
  if (refusal.has_value()) {
    Refuse(*refusal);
  } else {
    transfer_->AddBytes(static_cast<int64_t>(chunk.bytes), 0);
    transfer_->AddStage(engine::Stage::kIngress, env_.clock->Now() - read_started_);
    for (kv::Tile& tile : complete) ready_.push_back(std::move(tile));
  }
}

// Verifies a chunk and copies it into its tiles, without the lock: this is where a reader's time
// goes.
std::optional<Refusal> TransferSession::Assemble(const wire::ReceivedChunk& chunk,
                                                 std::vector<kv::Tile>* complete) {
  if (chunk.bytes > kMaxChunkBytes) {
    return Fallback(
        Reason::kInvalidRequest,
        absl::StrCat("chunk.data: expected at most ", kMaxChunkBytes, " bytes, got ", chunk.bytes));
  }
  const auto head = ToChunkHeader(chunk.head);
  if (!head.ok()) return Fallback(Reason::kInvalidRequest, head.status().message());
  uint32_t crc = 0;
  const auto tiles = assembler_->Add(
      *head, chunk.data,
      [&crc](std::byte* to, std::span<const std::byte> from) {
        crc = wire::CopyCrc32c(to, from, crc);
      },
      [&] { return wire::VerifyCrc(chunk.head, crc); });
  if (!tiles.ok()) return FromAssembler(tiles.status());
  for (const int64_t index : *tiles) {
    auto tile = assembler_->TakeTile(index);
    if (!tile.ok()) return Fallback(Reason::kInternal, tile.status().message());
    complete->push_back(*std::move(tile));
  }
  return std::nullopt;
}

void TransferSession::EndInput() {
  base::MutexLock lock(&mutex_);
  if (context_->IsCancelled()) {
    Abandon();
  } else if (phase_ == Phase::kHeader) {
    Malformed(absl::InvalidArgumentError("stream: expected a header, got its end"));
  } else if (phase_ == Phase::kStreaming && !transfer_->cancelled()) {
    const absl::Status missing = assembler_->Finish();
    if (!missing.ok()) Refuse(FromAssembler(missing));
  }
}

// --- map

void TransferSession::SubmitTile(kv::Tile tile) {
  kv::TokenRange tokens = tile.tokens;
  tokens.end = std::min(tokens.end, transfer_->covered_tokens());
  if (tokens.size() <= 0) return;  // sent, but left to the target to prefill
  auto target =
      TargetTile::Create(input_.spec.target.geometry, tokens, input_.target_scales, *env_.buffers);
  if (!target.ok()) return Refuse(Fallback(Reason::kOverload, target.status().message()));
  ++sources_;
  ++open_tiles_;
  const absl::Status submitted =
      transfer_->SubmitTile(MakeWork(std::move(tile), tokens, *std::move(target)));
  if (submitted.ok() || transfer_->cancelled()) return;
  Refuse(Fallback(Reason::kInternal, submitted.message()));
}

engine::TileWork TransferSession::MakeWork(kv::Tile tile, kv::TokenRange tokens,
                                           TargetTile target) {
  engine::TileWork work;
  work.tokens = tokens;
  work.source = std::move(tile.view);
  work.source_owner = std::move(tile.buffer);
  work.target = target.view();
  work.target_owner = target.buffer();
  const auto open = std::make_shared<OpenTile>();
  work.on_source_released = [self = shared_from_this()] {
    base::MutexLock lock(&self->mutex_);
    --self->sources_;
    self->Pump();
  };
  work.on_layers = [self = shared_from_this(), target = std::move(target),
                    open](kv::LayerRange layers) { self->LayersMapped(target, layers, open); };
  work.on_done = [self = shared_from_this(), open](const absl::Status&) { self->TileMapped(open); };
  return work;
}

void TransferSession::LayersMapped(const TargetTile& target, kv::LayerRange layers,
                                   const TilePtr& open) {
  std::vector<OutgoingMessage> messages = target.Messages(layers);
  base::MutexLock lock(&mutex_);
  if (phase_ != Phase::kStreaming) return;
  for (OutgoingMessage& message : messages) {
    ++open->unsent;
    Send(std::move(message), open);
  }
  PumpWrite();
}

void TransferSession::TileMapped(const TilePtr& open) {
  base::MutexLock lock(&mutex_);
  open->mapped = true;
  moved_ = env_.clock->Now();
  CloseIfSent(open);
  Pump();
}

void TransferSession::CloseIfSent(const TilePtr& open) {
  if (open->mapped && open->unsent == 0) --open_tiles_;
}

// --- out

void TransferSession::Send(OutgoingMessage message, TilePtr tile) {
  outbox_.push_back({std::move(message), std::move(tile)});
}

void TransferSession::OnWriteDone(bool ok) {
  base::MutexLock lock(&mutex_);
  writing_ = false;
  moved_ = env_.clock->Now();
  const Outgoing sent = std::move(outbox_.front());
  outbox_.pop_front();
  if (!ok) Abandon();
  if (phase_ == Phase::kStreaming) {
    transfer_->AddBytes(0, sent.message.payload);
    transfer_->AddStage(engine::Stage::kEgress, env_.clock->Now() - write_started_);
    if (sent.tile != nullptr) {
      --sent.tile->unsent;
      CloseIfSent(sent.tile);
    }
  }
  Pump();
}

void TransferSession::Pump() {
  if (phase_ == Phase::kStreaming) PumpTiles();
  if (phase_ == Phase::kStreaming) {
    const bool complete = input_ended_ && ready_.empty() && open_tiles_ == 0;
    if (complete || transfer_->cancelled()) FinishTransfer();
  }
  PumpRead();
  PumpWrite();
}

void TransferSession::PumpTiles() {
  while (!ready_.empty() && open_tiles_ < tile_limit_ && !transfer_->cancelled()) {
    kv::Tile tile = std::move(ready_.front());
    ready_.pop_front();
    SubmitTile(std::move(tile));
  }
}

// A tile that fills needs room beside those that are complete.
void TransferSession::PumpRead() {
  const bool wanted = phase_ == Phase::kHeader ||
                      (phase_ == Phase::kStreaming && ready_.size() + sources_ < tile_limit_);
  if (reading_ || input_ended_ || !wanted) return;
  reading_ = true;
  read_started_ = env_.clock->Now();
  StartRead(&incoming_);
}

void TransferSession::PumpWrite() {
  if (writing_ || phase_ == Phase::kFinished) return;
  const bool closing = phase_ == Phase::kClosing;
  if (outbox_.empty()) {
    if (!closing) return;
    phase_ = Phase::kFinished;
    Finish(ToGrpc(status_));
  } else if (closing && outbox_.size() == 1) {
    phase_ = Phase::kFinished;
    StartWriteAndFinish(&outbox_.front().message.bytes, grpc::WriteOptions(), ToGrpc(status_));
  } else {
    writing_ = true;
    write_started_ = env_.clock->Now();
    StartWrite(&outbox_.front().message.bytes);
  }
}

// --- end

void TransferSession::Refuse(Refusal refusal) {
  if (phase_ == Phase::kStreaming) transfer_->Cancel(std::move(refusal));
}

void TransferSession::Malformed(absl::Status status) {
  if (phase_ == Phase::kStreaming) {
    return Refuse(Fallback(Reason::kInvalidRequest, status.message()));
  }
  if (phase_ != Phase::kHeader) return;
  env_.recorder->Malformed(env_.clock->Now() - started_);
  Close(std::move(status));
}

// Nobody listens any more.
void TransferSession::Abandon() {
  if (phase_ == Phase::kStreaming) {
    transfer_->Cancel(Fallback(Reason::kCancelled, "the caller went away"));
    FinishTransfer();
  }
  if (phase_ == Phase::kFinished) return;
  Close(absl::CancelledError("the caller went away"));
}

void TransferSession::FinishTransfer() {
  const std::optional<engine::Decision> decision = transfer_->Finish();
  if (decision.has_value()) Decide(*decision);
}

void TransferSession::Decide(const engine::Decision& decision) {
  Close(absl::OkStatus());
  Record(decision);
  v1::TransferEvent event;
  *event.mutable_completed()->mutable_decision() = ToProto(decision);
  Send({wire::Serialize(event), 0}, nullptr);
}

void TransferSession::Record(const engine::Decision& decision) {
  about_.time = env_.clock->Now();
  about_.total = about_.time - started_;
  env_.recorder->Decided(decision, about_);
  const auto stage = [&decision](engine::Stage s) {
    return decision.stages[static_cast<size_t>(s)];
  };
  engine::RateMeter& rates = env_.engine->rates();
  rates.Record(kInlineIn, static_cast<double>(decision.bytes_in), stage(engine::Stage::kIngress),
               about_.time);
  rates.Record(kInlineOut, static_cast<double>(decision.bytes_out), stage(engine::Stage::kEgress),
               about_.time);
}

// Lets go of everything but the message that gRPC is sending.
void TransferSession::Close(absl::Status status) {
  phase_ = Phase::kClosing;
  status_ = std::move(status);
  outbox_.erase(outbox_.begin() + (writing_ ? 1 : 0), outbox_.end());
  ready_.clear();
  transfer_.reset();
}

void TransferSession::OnCancel() {
  base::MutexLock lock(&mutex_);
  Abandon();
  Pump();
}

void TransferSession::OnDone() {
  std::string code;
  {
    base::MutexLock lock(&mutex_);
    code = std::string(CodeName(ToGrpc(status_).error_code()));
  }
  env_.recorder->RpcEnded(kMethod, code, env_.clock->Now() - started_);
  const std::shared_ptr<TransferSession> last = std::move(self_);
}

}  // namespace kvbridge::server
