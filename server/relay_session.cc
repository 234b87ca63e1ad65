#include "server/relay_session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

#include "core/base/file.h"
#include "core/base/utf8.h"
#include "proto/kvbridge/v1/chunk_codec.h"
#include "proto/kvbridge/v1/metadata_text.h"
#include "server/address.h"
#include "server/grpc_status.h"
#include "server/grpc_time.h"
#include "server/tenant.h"

namespace kvbridge::server {
namespace {

using guard::Fallback;
using guard::Reason;
using guard::Refusal;

constexpr uint64_t kMaxTokenBytes = 64 << 10;
constexpr size_t kMaxDetail = 200;  // bytes of what a peer says in words
// What ends the frames of a transfer: a frame with no head.
constexpr std::byte kEnd[1] = {};

// Where to push to: "host:port", or ":port" of the host that answers the call.
std::string PushAddress(const std::string& told, const std::string& peer_uri) {
  if (!absl::StartsWith(told, ":")) return told;
  // "ipv4:10.0.0.2:50061", "ipv6:%5B::1%5D:50061"
  const std::string plain = absl::StrReplaceAll(peer_uri, {{"%5B", "["}, {"%5D", "]"}});
  absl::string_view host = plain;
  if (!absl::ConsumePrefix(&host, "ipv4:")) absl::ConsumePrefix(&host, "ipv6:");
  return absl::StrCat(host.substr(0, host.rfind(':')), told);
}

// A call that ended before its decision.
std::string HowEnded(const grpc::Status& status) {
  if (status.ok()) return "ended the call without a decision";
  return absl::StrCat(CodeName(status.error_code()), status.error_message().empty() ? "" : ": ",
                      status.error_message());
}

}  // namespace

std::shared_ptr<RelaySession> RelaySession::Create(const TransferEnv& env,
                                                   grpc::CallbackServerContext* context,
                                                   Stream* stream, const v1::TransferHeader& header,
                                                   const TraceContext& trace) {
  DecisionContext about = AboutTransfer(header, trace);
  about.map_side = v1::MAP_SIDE_TARGET;
  return std::shared_ptr<RelaySession>(new RelaySession(env, context, stream, std::move(about)));
}

void RelaySession::Start(const v1::TransferHeader& header) {
  std::optional<Refusal> refusal = Open(header);
  base::MutexLock lock(&mutex_);
  if (phase_ != Phase::kCalling) return;  // the caller went away meanwhile
  if (refusal.has_value()) {
    DecideHere(*std::move(refusal));
  } else {
    Call(*env_.peers->Find(peer_name_), header);
    SetAlarm();
  }
  Pump();
}

std::optional<Refusal> RelaySession::Open(const v1::TransferHeader& header) {
  peer_name_ = header.peer();
  spec_.route = header.route();
  spec_.token_ids_sha256 = header.source_selection().token_ids_sha256();
  if (env_.draining->load()) return Fallback(Reason::kDraining, "the server is shutting down");
  if (env_.peers->inflight_transfers() > env_.engine->admission().limits().max_inflight_transfers) {
    return Fallback(Reason::kOverload, "as many transfers to peers as may be in flight");
  }
  if (env_.peers->Find(peer_name_) == nullptr) {
    return Fallback(Reason::kInvalidRequest,
                    absl::StrCat("peer: expected one of [",
                                 absl::StrJoin(env_.peers->names(), ", "), "], got another"));
  }
  auto input = ToTransferInput(header, FromGrpcTime(*env_.clock, context_->deadline()));
  if (!input.ok()) return Fallback(Reason::kInvalidRequest, input.status().message());
  input->spec.tenant = TenantOf(*context_, header.tenant());
  spec_ = input->spec;
  return OpenSource(*std::move(input));
}

std::optional<Refusal> RelaySession::OpenSource(TransferInput input) {
  if (MapsAtSource(*env_.routes, input)) return OpenMap(std::move(input));
  if (!input.source.pool.has_value()) {
    source_ = ChunkRelay(env_.buffers);
    return std::nullopt;
  }
  auto pinned = PooledCache::Pin(env_.memory,
                                 {.tenant = spec_.tenant,
                                  .path = "source_selection",
                                  .model = spec_.source,
                                  .tokens = spec_.tokens},
                                 *std::move(input.source.pool));
  if (auto* no = std::get_if<Refusal>(&pinned)) return std::move(*no);
  source_ =
      PoolRelay(spec_, input.streamed_source,
                std::get<std::shared_ptr<const PooledCache>>(std::move(pinned)), env_.buffers);
  return std::nullopt;
}

// The answer, which lies at the peer, is made in buffers here.
std::optional<Refusal> RelaySession::OpenMap(TransferInput input) {
  input.target = Place();
  input.spec.target_buffered = true;
  base::MutexLock lock(&mutex_);
  about_.map_side = v1::MAP_SIDE_SOURCE;
  auto begun = BeginTransfer(env_, std::move(input), &about_);
  if (const auto* no = std::get_if<engine::Decision>(&begun)) return engine::WhyOf(*no);
  const auto wake = [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    base::MutexLock relock(&self->mutex_);
    self->Pump();
  };
  map_ = std::make_shared<RelayMap>(env_, std::get<BegunTransfer>(std::move(begun)), wake);
  source_ = map_;
  return std::nullopt;
}

void RelaySession::Call(const Peer& peer, v1::TransferHeader header) {
  header.clear_peer();
  header.set_tenant(peer.knows_us ? "" : spec_.tenant);
  header.set_streamed_source(false);
  header.mutable_source_selection()->mutable_remote();
  if (map_ != nullptr) map_->Describe(&header);
  if (spec_.deadline < absl::InfiniteFuture()) {
    call_.context().set_deadline(ToGrpcTime(*env_.clock, spec_.deadline));
  }
  if (!about_.trace.empty()) {
    call_.context().AddMetadata("traceparent", about_.trace.traceparent());
    if (!about_.trace.state.empty()) {
      call_.context().AddMetadata("tracestate", about_.trace.state);
    }
  }
  if (!peer.token_file.empty()) {
    const auto token = base::ReadFile(peer.token_file, kMaxTokenBytes);
    if (!token.ok()) {
      return DecideHere(Fallback(Reason::kTransport,
                                 absl::StrCat("peer ", peer.name, ": ", token.status().message())));
    }
    const absl::string_view line = absl::StripAsciiWhitespace(*token);
    if (line.empty() || !wire::IsMetadataText(line)) {
      return DecideHere(Fallback(
          Reason::kTransport,
          absl::StrCat("peer ", peer.name, ": token_file: expected one line of printable ASCII")));
    }
    call_.context().AddMetadata("authorization", absl::StrCat("Bearer ", line));
  }
  v1::TransferRequest request;
  *request.mutable_header() = std::move(header);
  to_peer_.push_back({wire::Serialize(request)});
  peer_over_ = false;
  call_.Start(peer.channel, shared_from_this());
}

// --- from the caller

void RelaySession::OnReadDone(bool ok) {
  {
    base::MutexLock lock(&mutex_);
    reading_ = false;
    moved_ = env_.clock->Now();
    if (phase_ == Phase::kClosing || phase_ == Phase::kFinished) return;
    input_ended_ = !ok;
    if (!ok && context_->IsCancelled()) Abandon();
    taking_ = ok;
    if (!ok) return EndInput();
  }
  TakeMessage();
}

void RelaySession::EndInput() {
  if (map_ != nullptr && phase_ == Phase::kSending) {
    if (auto missing = map_->End()) Fail(*std::move(missing));
  }
  Pump();
}

// Without the lock: this is where bytes are copied. `taking_` keeps everybody else out.
void RelaySession::TakeMessage() {
  const auto message = wire::ParseRequest(incoming_);
  incoming_.Clear();
  RelaySource::Answer answer =
      Fallback(Reason::kInvalidRequest, "stream: expected chunks or ready_up_to after the header");
  if (!message.ok()) {
    answer = Fallback(Reason::kInvalidRequest, message.status().message());
  } else if (const auto* chunk = std::get_if<wire::ReceivedChunk>(&*message)) {
    answer = source_->Take(*chunk);
  } else if (const auto* ready = std::get_if<v1::ReadyUpTo>(&*message)) {
    answer = source_->Take(*ready);
  }
  base::MutexLock lock(&mutex_);
  TakeFrames(std::move(answer));
  Pump();
}

void RelaySession::TakeFrames(RelaySource::Answer answer) {
  taking_ = false;
  if (auto* no = std::get_if<Refusal>(&answer)) return Fail(std::move(*no));
  if (phase_ != Phase::kSending) return;
  for (CacheChunk& frame : std::get<std::vector<CacheChunk>>(answer)) SendFrame(std::move(frame));
}

// --- to the peer

void RelaySession::SendFrame(CacheChunk frame) {
  ++frames_under_way_;
  if (outbox_ == nullptr) {
    to_peer_.push_back({wire::SerializeRequestChunk(std::move(frame.head), frame.payload,
                                                    [owner = std::move(frame.owner)] {}),
                        static_cast<int64_t>(frame.payload.size())});
    return;
  }
  outbox_->Send(frame.head.SerializeAsString(), frame.payload,
                [self = shared_from_this(), owner = std::move(frame.owner)](
                    const absl::Status& status) { self->FrameTaken(status); });
}

void RelaySession::FrameLeft() {
  --frames_under_way_;
  if (map_ != nullptr) map_->Left();
}

void RelaySession::FrameTaken(const absl::Status& status) {
  base::MutexLock lock(&mutex_);
  FrameLeft();
  moved_ = env_.clock->Now();
  if (!status.ok()) {
    Fail(Fallback(Reason::kTransport, absl::StrCat("peer ", peer_name_, ": ", status.message())));
  }
  Pump();
}

void RelaySession::EndSource() {
  if (map_ != nullptr) {
    if (auto no = map_->Seal()) return Fail(*std::move(no));
  }
  phase_ = Phase::kDeciding;
  if (outbox_ != nullptr) {
    outbox_->Send("", kEnd, [self = shared_from_this()](const absl::Status& status) {
      base::MutexLock lock(&self->mutex_);
      if (status.ok()) return;
      self->Fail(Fallback(Reason::kTransport,
                          absl::StrCat("peer ", self->peer_name_, ": ", status.message())));
      self->Pump();
    });
  }
  if (!spec_.source_buffered) {
    v1::TransferEvent event;
    event.mutable_source_released();
    to_caller_.push_back(wire::Serialize(event));
  }
}

void RelaySession::OnPeerWritten(bool ok) {
  base::MutexLock lock(&mutex_);
  peer_writing_ = false;
  moved_ = env_.clock->Now();
  if (to_peer_.front().payload > 0) FrameLeft();
  to_peer_.pop_front();
  if (!ok) peer_over_ = true;
  Pump();
}

// --- from the peer

void RelaySession::OnPeerRead(bool ok) {
  base::MutexLock lock(&mutex_);
  peer_reading_ = false;
  moved_ = env_.clock->Now();
  if (ok) {
    TakeEvent();
  } else {
    peer_over_ = true;
  }
  Pump();
}

void RelaySession::TakeEvent() {
  if (phase_ == Phase::kClosing || phase_ == Phase::kFinished) return;
  auto event = wire::ParseEvent(call_.incoming());
  auto* message = event.ok() ? std::get_if<v1::TransferEvent>(&*event) : nullptr;
  if (!event.ok()) {
    Fail(Fallback(Reason::kTransport,
                  absl::StrCat("peer ", peer_name_, ": ", event.status().message())));
  } else if (message != nullptr && message->has_accepted()) {
    Accepted(std::move(*message));
  } else if (message != nullptr && message->has_completed()) {
    peer_decided_ = true;
    TakeDecision(std::move(*message->mutable_completed()->mutable_decision()));
  } else {
    to_caller_.push_back(std::move(call_.incoming()));
  }
}

// A caller always learns why, and that it is the peer who left it out or came too early.
void RelaySession::TakeDecision(v1::Decision decision) {
  const bool applied = decision.outcome() == v1::OUTCOME_APPLIED;
  if (applied && phase_ == Phase::kCalling) {
    return DecideHere(Fallback(
        Reason::kTransport, absl::StrCat("peer ", peer_name_, ": applied before it was accepted")));
  }
  if (!applied && decision.reason() == v1::REASON_UNSPECIFIED) {
    decision.set_reason(v1::REASON_INTERNAL);
    decision.set_detail(absl::StrCat("peer ", peer_name_, ": gave no reason",
                                     decision.detail().empty() ? "" : ": ", decision.detail()));
  }
  if (decision.outcome() == v1::OUTCOME_UNSPECIFIED) {
    decision.set_outcome(v1::OUTCOME_FALLBACK_REPREFILL);
  }
  Decide(std::move(decision));
}

void RelaySession::Accepted(v1::TransferEvent event) {
  if (phase_ != Phase::kCalling) return;
  phase_ = Phase::kSending;
  v1::TransferAccepted& accepted = *event.mutable_accepted();
  source_->SetPeerTile(std::max<int64_t>(1, accepted.tile_tokens()));
  if (map_ != nullptr) {
    if (auto no = map_->Open(&accepted)) return Fail(*std::move(no));
    about_.target_transport = kInline;
  }
  accepted.set_plane(v1::PLANE_INLINE);
  const std::string peer = call_.context().peer();
  const std::string address = PushAddress(accepted.remote().address(), peer);
  if (accepted.has_remote() && env_.peers->node() != nullptr &&
      env_.peers->MayPush(address, IsLocalPeer(peer))) {
    auto outbox = env_.peers->node()->Connect(address, accepted.remote().token());
    if (!outbox.ok()) {
      return Fail(Fallback(Reason::kTransport,
                           absl::StrCat("peer ", peer_name_, ": ", outbox.status().message())));
    }
    outbox_ = *std::move(outbox);
    accepted.set_plane(v1::PLANE_UCX);
    if (map_ != nullptr) about_.target_transport = kUcx;
  }
  accepted.clear_remote();
  to_caller_.push_back(wire::Serialize(event));
}

void RelaySession::OnPeerDone(const grpc::Status& status) {
  base::MutexLock lock(&mutex_);
  peer_over_ = true;
  if (failure_.has_value()) {
    DecideHere(*failure_);
  } else {
    const Reason reason = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED
                              ? Reason::kDeadlineExceeded
                              : Reason::kTransport;
    DecideHere(Fallback(reason, absl::StrCat("peer ", peer_name_, ": ", HowEnded(status))));
  }
  Pump();
}

// --- end

// The peer is told; its decision lists what it had written. The outbox stays open until then: a
// connection that ends would be an answer of its own.
void RelaySession::Fail(Refusal refusal) {
  if (failure_.has_value() || verdict_.has_value()) return;
  failure_ = std::move(refusal);
  if (map_ != nullptr) map_->Cancel(*failure_);
  phase_ = Phase::kDeciding;
  give_up_ = env_.clock->Now() + env_.peers->timeout();
  SetAlarm();
  if (half_closed_) return;
  v1::TransferRequest request;
  v1::SourceFailed& failed = *request.mutable_source_failed();
  failed.set_outcome(ToProto(failure_->outcome));
  failed.set_reason(ToProto(failure_->reason));
  failed.set_detail(base::ValidUtf8(failure_->detail));
  to_peer_.push_back({wire::Serialize(request)});
}

// The peer has not, or can't any more.
void RelaySession::DecideHere(Refusal refusal) {
  Decide(ToProto(engine::Refused(std::move(refusal), spec_)));
}

void RelaySession::Decide(v1::Decision decision) {
  if (verdict_.has_value()) return;
  verdict_ = std::move(decision);
  verdict_->set_detail(std::string(base::Clip(verdict_->detail(), kMaxDetail)));
  phase_ = Phase::kDeciding;
  if (map_ != nullptr) verdict_ = ToProto(map_->Conclude(FromProto(*verdict_)));
}

// Not while a worker is in the caller's pages: they are the caller's again when it reads this.
void RelaySession::Announce() {
  Close(absl::OkStatus());
  about_.time = env_.clock->WallNow();
  about_.total = env_.clock->Now() - started_;
  env_.recorder->Decided(FromProto(*verdict_), about_);
  v1::TransferEvent event;
  *event.mutable_completed()->mutable_decision() = *std::move(verdict_);
  event.mutable_completed()->mutable_decision()->set_map_side(about_.map_side);
  to_caller_.push_back(wire::Serialize(event));
}

void RelaySession::Abandon() {
  if (phase_ == Phase::kFinished) return;
  if (phase_ != Phase::kClosing) {
    DecideHere(Fallback(Reason::kCancelled, "the caller went away"));
    Announce();
  }
  Close(absl::CancelledError("the caller went away"));
}

// Lets go of everything but the messages that gRPC is sending.
void RelaySession::Close(absl::Status status) {
  phase_ = Phase::kClosing;
  status_ = std::move(status);
  outbox_.reset();
  in_flight_.reset();
  to_caller_.erase(to_caller_.begin() + (writing_ ? 1 : 0), to_caller_.end());
  to_peer_.erase(to_peer_.begin() + (peer_writing_ ? 1 : 0), to_peer_.end());
  if (!peer_decided_) call_.context().TryCancel();
}

void RelaySession::SetAlarm() {
  alarm_ = std::make_unique<grpc::Alarm>();
  absl::Time wake = std::min(moved_ + env_.idle_timeout, give_up_);
  if (map_ != nullptr && phase_ < Phase::kDeciding) wake = std::min(wake, map_->stop_at());
  alarm_->Set(ToGrpcTime(*env_.clock, wake), [weak = weak_from_this()](bool fired) {
    const auto self = weak.lock();
    if (self != nullptr && fired) self->OnAlarm();
  });
}

void RelaySession::OnAlarm() {
  base::MutexLock lock(&mutex_);
  if (phase_ == Phase::kFinished) return;
  const absl::Time now = env_.clock->Now();
  if (map_ != nullptr && !map_->idle()) moved_ = now;  // it is we who keep the caller waiting
  const bool idle = now - moved_ >= env_.idle_timeout;
  if (idle && phase_ == Phase::kClosing) return context_->TryCancel();
  if (now >= give_up_) {
    DecideHere(*failure_);
  } else if (idle) {
    moved_ = now;
    Fail(Fallback(Reason::kTransport, absl::StrCat("stream: nothing was sent or read for ",
                                                   absl::FormatDuration(env_.idle_timeout))));
  }
  Pump();
  if (phase_ != Phase::kFinished) SetAlarm();
}

void RelaySession::OnWriteDone(bool ok) {
  base::MutexLock lock(&mutex_);
  writing_ = false;
  moved_ = env_.clock->Now();
  to_caller_.pop_front();
  if (!ok) Abandon();
  Pump();
}

void RelaySession::OnCancel() {
  base::MutexLock lock(&mutex_);
  Abandon();
  Pump();
}

grpc::StatusCode RelaySession::OnDone() {
  base::MutexLock lock(&mutex_);
  return ToGrpc(status_).error_code();
}

// --- pump

void RelaySession::Pump() {
  if (map_ != nullptr && phase_ < Phase::kDeciding) {
    if (auto no = map_->Stopped()) Fail(*std::move(no));
  }
  if (phase_ == Phase::kSending && !taking_ && HasRoom()) PumpSource();
  const bool announced = phase_ == Phase::kClosing || phase_ == Phase::kFinished;
  if (verdict_.has_value() && !announced && (map_ == nullptr || map_->idle())) Announce();
  PumpPeer();
  PumpCaller();
}

// What lies in a pool waits for nobody; it is gathered under the lock, a frame at a time.
void RelaySession::PumpSource() {
  while (phase_ == Phase::kSending && HasRoom()) {
    RelaySource::Answer next = source_->Next();
    const auto* frames = std::get_if<std::vector<CacheChunk>>(&next);
    if (frames != nullptr && frames->empty()) break;
    TakeFrames(std::move(next));
  }
  if (phase_ == Phase::kSending && frames_under_way_ == 0 && source_->Complete(input_ended_)) {
    EndSource();
  }
}

void RelaySession::PumpPeer() {
  if (peer_over_) return call_.Release();
  if (!peer_writing_ && !to_peer_.empty()) {
    peer_writing_ = true;
    call_.Write(std::exchange(to_peer_.front().message, {}));
  }
  // Chunks in the call end with its half-close; frames have an end of their own.
  if (phase_ == Phase::kDeciding && outbox_ == nullptr && to_peer_.empty() && !half_closed_) {
    half_closed_ = true;
    call_.StartWritesDone();
  }
  // Not faster than the caller reads.
  if (!peer_reading_ && to_caller_.size() < 2) {
    peer_reading_ = true;
    call_.Read();
  }
}

void RelaySession::PumpCaller() {
  const bool wanted = HasRoom() && (map_ == nullptr || map_->HasRoom());
  if (phase_ == Phase::kSending && !reading_ && !taking_ && !input_ended_ && wanted) {
    reading_ = true;
    stream_.StartRead(&incoming_);
  }
  if (writing_ || phase_ == Phase::kFinished) return;
  const bool closing = phase_ == Phase::kClosing;
  if (to_caller_.empty()) {
    if (!closing) return;
    phase_ = Phase::kFinished;
    stream_.Finish(ToGrpc(status_));
  } else if (closing && to_caller_.size() == 1) {
    phase_ = Phase::kFinished;
    stream_.StartWriteAndFinish(&to_caller_.front(), grpc::WriteOptions(), ToGrpc(status_));
  } else {
    writing_ = true;
    stream_.StartWrite(&to_caller_.front());
  }
}

}  // namespace kvbridge::server
