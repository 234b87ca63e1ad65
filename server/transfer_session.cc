#include "server/transfer_session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/kvbridge/v1/chunk_codec.h"
#include "server/grpc_status.h"
#include "server/grpc_time.h"
#include "server/tenant.h"
#include "server/tile_work.h"

namespace kvbridge::server {
namespace {

using guard::Fallback;
using guard::Reason;
using guard::Refusal;

const metrics::RpcMethod kMethod{"kvbridge.v1.KvBridge", "Transfer", "bidi_stream"};

absl::Status HeaderFirst() {
  return absl::InvalidArgumentError("stream: expected the header first");
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
      trace_(ContinueTrace(context->client_metadata())),
      tile_limit_(env.engine->tiles_in_flight()) {
  if (!trace_.empty()) context->AddTrailingMetadata("traceparent", trace_.traceparent());
}

// --- in

// `reading_` stays set until the message is dealt with: no other thread may start the next read
// while the assembler is in use.
void TransferSession::OnReadDone(bool ok) {
  if (const auto relay = this->relay()) return relay->OnReadDone(ok);
  {
    base::MutexLock lock(&mutex_);
    if (phase_ == Phase::kClosing || phase_ == Phase::kFinished) return;
    stream_ended_ = !ok;
    if (inbox_ == nullptr) input_ended_ = !ok;
    moved_ = env_.clock->Now();
  }
  if (ok) {
    TakeMessage();
  } else {
    EndInput();
  }
  base::MutexLock lock(&mutex_);
  reading_ = false;
  if (relay_ == nullptr) Pump();
}

void TransferSession::TakeMessage() {
  const auto message = wire::ParseRequest(incoming_);
  incoming_.Clear();
  if (!message.ok()) {
    base::MutexLock lock(&mutex_);
    Malformed(message.status());
  } else if (const auto* header = std::get_if<v1::TransferHeader>(&*message)) {
    TakeHeader(*header);
  } else if (const auto* failed = std::get_if<v1::SourceFailed>(&*message)) {
    base::MutexLock lock(&mutex_);
    if (phase_ == Phase::kHeader) return Malformed(HeaderFirst());
    Refuse(FromProto(*failed));
  } else if (const auto* chunk = std::get_if<wire::ReceivedChunk>(&*message)) {
    if (HasInbox()) {
      base::MutexLock lock(&mutex_);
      return Refuse(Fallback(Reason::kInvalidRequest, "chunk: expected it over UCX, as accepted"));
    }
    TakeSource(*chunk);
  } else {
    TakeSource(std::get<v1::ReadyUpTo>(*message));
  }
}

void TransferSession::TakeHeader(const v1::TransferHeader& header) {
  {
    base::MutexLock lock(&mutex_);
    if (phase_ != Phase::kHeader) {
      Refuse(Fallback(Reason::kInvalidRequest, "header: expected chunks after it, got a second"));
      return;
    }
  }
  const absl::Status own = CheckStated(*context_, "header.tenant", header.tenant(), env_.recorder);
  if (!own.ok()) {
    base::MutexLock lock(&mutex_);
    return Malformed(own);
  }
  if (!StaysHere(env_, header)) {
    auto relay = RelaySession::Create(env_, context_, this, header, trace_);
    {
      base::MutexLock lock(&mutex_);
      if (phase_ != Phase::kHeader) return;
      relay_ = relay;
    }
    return relay->Start(header);
  }
  DecisionContext about{.trace = trace_};
  auto begun = BeginTransfer(env_, *context_, header, &about);
  base::MutexLock lock(&mutex_);
  if (phase_ != Phase::kHeader) return;  // the caller went away meanwhile
  about_ = std::move(about);
  if (auto* transfer = std::get_if<BegunTransfer>(&begun)) {
    Accept(std::move(*transfer));
  } else {
    Decide(std::get<engine::Decision>(begun));
  }
}

void TransferSession::Accept(BegunTransfer begun) {
  transfer_ = std::move(begun.transfer);
  source_ = std::move(begun.source);
  target_ = std::move(begun.target);
  inbox_ = std::move(begun.inbox);
  phase_ = Phase::kStreaming;
  const guard::TransferSpec& spec = transfer_->spec();
  unsubmitted_ = transfer_->covered_tokens() - spec.first_token;
  moved_ = env_.clock->Now();
  SetAlarm();
  v1::TransferEvent event;
  v1::TransferAccepted& accepted = *event.mutable_accepted();
  DescribeTransfer(env_, *transfer_, &accepted);
  accepted.set_plane(spec.source_buffered || spec.target_buffered ? v1::PLANE_INLINE
                                                                  : v1::PLANE_REGION);
  // To a caller who named a peer it is the way on from here, and nothing goes on.
  if (about_.map_side == v1::MAP_SIDE_SOURCE) accepted.set_plane(v1::PLANE_UNSPECIFIED);
  if (inbox_ != nullptr) {
    accepted.set_plane(v1::PLANE_UCX);
    accepted.mutable_remote()->set_address(env_.peers->push_address());
    accepted.mutable_remote()->set_token(inbox_->token());
  }
  Send({wire::Serialize(event), 0}, nullptr);
  Queue(std::move(begun.ready));
}

// Wakes for the transfer's own end, and to see whether the stream still moves.
void TransferSession::SetAlarm() {
  absl::Time wake = moved_ + env_.idle_timeout;
  if (phase_ == Phase::kStreaming && !transfer_->cancelled()) {
    wake = std::min(wake, transfer_->stop_at());
  }
  alarm_ = std::make_unique<grpc::Alarm>();
  // Weak: the alarm is a member, and keeps its callback.
  alarm_->Set(ToGrpcTime(*env_.clock, wake), [weak = weak_from_this()](bool fired) {
    const auto self = weak.lock();
    if (self != nullptr && fired) self->OnAlarm();
  });
}

void TransferSession::OnAlarm() {
  base::MutexLock lock(&mutex_);
  if (phase_ == Phase::kFinished) return;
  const absl::Time now = env_.clock->Now();
  if (running_ > 0) moved_ = now;  // it is we who keep the caller waiting
  if (now - moved_ >= env_.idle_timeout) {
    if (phase_ == Phase::kClosing) return context_->TryCancel();
    moved_ = now;
    Refuse(Fallback(Reason::kTransport, absl::StrCat("stream: nothing was sent or read for ",
                                                     absl::FormatDuration(env_.idle_timeout))));
  }
  Pump();
  if (phase_ != Phase::kFinished) SetAlarm();
}

// The source works without the lock: this is where a reader's time goes.
template <typename Message>
void TransferSession::TakeSource(const Message& message) {
  std::shared_ptr<SourcePlane> source;
  {
    base::MutexLock lock(&mutex_);
    if (phase_ == Phase::kHeader) {
      Malformed(HeaderFirst());
    }
    source = source_;
  }
  if (source == nullptr) return;
  SourcePlane::Answer answer = source->Take(message);
  base::MutexLock lock(&mutex_);
  if (phase_ != Phase::kStreaming) return;
  if (auto* no = std::get_if<Refusal>(&answer)) return Refuse(std::move(*no));
  if constexpr (std::is_same_v<Message, wire::ReceivedChunk>) {
    transfer_->AddBytes(static_cast<int64_t>(message.bytes), 0);
    transfer_->AddStage(engine::Stage::kIngress, env_.clock->Now() - read_started_);
  }
  Queue(std::get<std::vector<SourceTile>>(std::move(answer)));
}

void TransferSession::Queue(std::vector<SourceTile> tiles) {
  QueueCovered(std::move(tiles), transfer_->covered_tokens(), &ready_);
}

void TransferSession::EndInput() {
  base::MutexLock lock(&mutex_);
  if (context_->IsCancelled()) {
    Abandon();
  } else if (phase_ == Phase::kHeader) {
    Malformed(absl::InvalidArgumentError("stream: expected a header, got its end"));
  } else if (input_ended_ && source_ != nullptr && !transfer_->cancelled()) {
    if (std::optional<Refusal> missing = source_->End()) Refuse(*std::move(missing));
  }
}

// On the node's thread, as a reader's.
void TransferSession::TakeFrame(absl::StatusOr<ucx::Frame> frame) {
  wire::ReceivedChunk chunk;
  bool end = false;
  if (!frame.ok()) {
    base::MutexLock lock(&mutex_);
    Refuse(Fallback(Reason::kTransport, frame.status().message()));
  } else if (frame->head.empty()) {
    end = true;
  } else if (!chunk.head.ParseFromString(frame->head)) {
    base::MutexLock lock(&mutex_);
    Refuse(Fallback(Reason::kTransport, "frame: expected a chunk's head, got other bytes"));
  } else {
    chunk.data = {frame->payload};
    chunk.bytes = frame->payload.size();
    TakeSource(chunk);
  }
  {
    base::MutexLock lock(&mutex_);
    input_ended_ = input_ended_ || end;
  }
  if (end) EndInput();
  base::MutexLock lock(&mutex_);
  moved_ = env_.clock->Now();
  receiving_ = false;
  Pump();
}

// --- map

void TransferSession::SubmitTile(SourceTile tile) {
  auto target = target_->Open(tile.tokens);
  if (!target.ok()) return Refuse(Fallback(Reason::kOverload, target.status().message()));
  unsubmitted_ -= tile.tokens.size();
  ++sources_;
  ++running_;
  ++open_tiles_;
  const absl::Status submitted = transfer_->SubmitTile(Work(std::move(tile), *std::move(target)));
  if (submitted.ok()) return;
  --running_;
  if (!transfer_->cancelled()) Refuse(Fallback(Reason::kInternal, submitted.message()));
}

engine::TileWork TransferSession::Work(SourceTile tile, std::shared_ptr<const TargetTile> target) {
  const auto open = std::make_shared<OpenTile>();
  open->tokens = tile.tokens.size();
  engine::TileWork work = MakeWork(std::move(tile), target);
  work.on_source_released = [self = shared_from_this()] { self->SourceRead(); };
  work.on_layers = [self = shared_from_this(), target = std::move(target),
                    open](kv::LayerRange layers) { self->LayersMapped(*target, layers, open); };
  work.on_done = [self = shared_from_this(), open](const absl::Status& status) {
    self->TileMapped(open, status);
  };
  return work;
}

void TransferSession::SourceRead() {
  base::MutexLock lock(&mutex_);
  --sources_;
  if (phase_ == Phase::kStreaming && !transfer_->spec().source_buffered && unsubmitted_ == 0 &&
      sources_ == 0 && !transfer_->cancelled()) {
    source_.reset();
    v1::TransferEvent event;
    event.mutable_source_released();
    Send({wire::Serialize(event), 0}, nullptr);
  }
  Pump();
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

void TransferSession::TileMapped(const TilePtr& open, const absl::Status& status) {
  base::MutexLock lock(&mutex_);
  --running_;
  open->mapped = true;
  moved_ = env_.clock->Now();
  if (phase_ == Phase::kStreaming && status.ok()) {
    const guard::TransferSpec& spec = transfer_->spec();
    const auto bytes = [&open](const model::ModelSpec& model) {
      return open->tokens * model.geometry.token_bytes();
    };
    transfer_->AddBytes(spec.source_buffered ? 0 : bytes(spec.source),
                        spec.target_buffered ? 0 : bytes(spec.target));
  }
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
  if (const auto relay = this->relay()) return relay->OnWriteDone(ok);
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
  if (phase_ == Phase::kStreaming && MayFinish()) FinishTransfer();
  PumpRead();
  PumpWrite();
}

void TransferSession::PumpTiles() {
  const auto limit = static_cast<size_t>(transfer_->works_in_flight());
  while (!ready_.empty() && open_tiles_ < limit && !transfer_->cancelled()) {
    SubmitTile(TakeTokens(transfer_->work_tokens(), &ready_));
  }
}

// A tile that fills needs room beside those that are complete. Word of a pool's pages needs none.
void TransferSession::PumpRead() {
  const bool wanted = phase_ == Phase::kHeader ||
                      (phase_ == Phase::kStreaming &&
                       (!transfer_->spec().source_buffered || inbox_ != nullptr || HasRoom()));
  PumpInbox();
  if (reading_ || stream_ended_ || !wanted) return;
  reading_ = true;
  read_started_ = env_.clock->Now();
  StartRead(&incoming_);
}

void TransferSession::PumpInbox() {
  if (inbox_ == nullptr || receiving_ || input_ended_ || !HasRoom()) return;
  if (transfer_->cancelled()) return;
  receiving_ = true;
  read_started_ = env_.clock->Now();
  inbox_->Read([self = shared_from_this()](absl::StatusOr<ucx::Frame> frame) {
    self->TakeFrame(std::move(frame));
  });
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

bool TransferSession::MayFinish() const {
  const guard::TransferSpec& spec = transfer_->spec();
  const bool inline_only = spec.source_buffered && spec.target_buffered;
  if (transfer_->cancelled()) return inline_only || running_ == 0;
  const bool all_in = input_ended_ || (!spec.source_buffered && unsubmitted_ == 0);
  return all_in && ready_.empty() && open_tiles_ == 0;
}

void TransferSession::FinishTransfer() {
  const std::optional<engine::Decision> decision = transfer_->Finish();
  if (decision.has_value()) Decide(*decision);
}

void TransferSession::Decide(const engine::Decision& decision) {
  Close(absl::OkStatus());
  Record(decision);
  v1::TransferEvent event;
  v1::Decision& told = *event.mutable_completed()->mutable_decision();
  told = ToProto(decision);
  told.set_map_side(about_.map_side);
  Send({wire::Serialize(event), 0}, nullptr);
}

void TransferSession::Record(const engine::Decision& decision) {
  const absl::Time now = env_.clock->Now();
  about_.time = env_.clock->WallNow();
  about_.total = now - started_;
  env_.recorder->Decided(decision, about_);
  const auto record = [&](absl::string_view key, int64_t bytes, engine::Stage stage) {
    env_.engine->rates().Record(key, static_cast<double>(bytes),
                                decision.stages[static_cast<size_t>(stage)], now);
  };
  if (about_.source_transport == kInline) {
    record(kInlineIn, decision.bytes_in, engine::Stage::kIngress);
  }
  if (about_.target_transport == kInline) {
    record(kInlineOut, decision.bytes_out, engine::Stage::kEgress);
  }
}

// Lets go of everything but the message that gRPC is sending.
void TransferSession::Close(absl::Status status) {
  phase_ = Phase::kClosing;
  status_ = std::move(status);
  outbox_.erase(outbox_.begin() + (writing_ ? 1 : 0), outbox_.end());
  ready_.clear();
  source_.reset();
  target_.reset();
  inbox_.reset();
  transfer_.reset();
}

void TransferSession::OnCancel() {
  if (const auto relay = this->relay()) return relay->OnCancel();
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
  if (const auto relay = this->relay()) code = std::string(CodeName(relay->OnDone()));
  env_.recorder->RpcEnded(kMethod, code, env_.clock->Now() - started_);
  const std::shared_ptr<TransferSession> last = std::move(self_);
}

}  // namespace kvbridge::server
