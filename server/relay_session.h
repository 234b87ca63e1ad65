// A transfer whose source is here and whose target is beside a peer: the caller's stream, a
// Transfer call to the peer, and the source's bytes on their way there, over UCX or, where the peer
// does not listen for it, as chunks in that call.
//
//   caller -> chunk, or pool's pages -> buffer -> frame -> peer      (frames_in_flight at once)
//   caller <- event <------------------------------------- peer      (read as the caller reads)
//
// What travels is the source's cache or, where that is the smaller one, the target's, mapped here
// (relay_map.h).
//
// The peer decides; what it says is passed on. One that only writes what was mapped here decides
// that much: the rest of the decision is ours. When the bytes can't go on, it is told why, so that
// its answer names the pages that it had written. Where it no longer answers, the decision is made
// here: transport.
//
// Threads: gRPC's, and the UCX node's. What they share is guarded by one mutex, and operations of
// both streams are started under it, as in TransferSession, which hands its stream over.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"
#include "core/ucx/outbox.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/begin_transfer.h"
#include "server/convert.h"
#include "server/peer_call.h"
#include "server/peers.h"
#include "server/relay_map.h"
#include "server/relay_source.h"

namespace kvbridge::server {

class RelaySession final : public PeerCall::Owner,
                           public std::enable_shared_from_this<RelaySession> {
 public:
  using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  // `stream` outlives OnDone.
  static std::shared_ptr<RelaySession> Create(const TransferEnv& env,
                                              grpc::CallbackServerContext* context, Stream* stream,
                                              const v1::TransferHeader& header,
                                              const TraceContext& trace);
  RelaySession(const RelaySession&) = delete;
  RelaySession& operator=(const RelaySession&) = delete;

  // From now on the stream, which has no operation outstanding, is driven from here; its reactions
  // must be passed on, OnCancel before, too.
  void Start(const v1::TransferHeader& header);
  void OnReadDone(bool ok);
  void OnWriteDone(bool ok);
  void OnCancel();
  // Of the stream: how it ended.
  grpc::StatusCode OnDone();

  void OnPeerRead(bool ok) override;
  void OnPeerWritten(bool ok) override;
  void OnPeerDone(const grpc::Status& status) override;

 private:
  enum class Phase {
    kCalling,   // the peer has not accepted yet
    kSending,   // the source's bytes are on their way
    kDeciding,  // nothing more is sent; the peer's decision is awaited
    kClosing,   // decided: what is in the queue still leaves
    kFinished,  // the status is on its way
  };

  // A message to the peer, and whether it is a frame of the source.
  struct ToPeer {
    grpc::ByteBuffer message;
    int64_t payload = 0;
  };

  RelaySession(const TransferEnv& env, grpc::CallbackServerContext* context, Stream* stream,
               DecisionContext about)
      : env_(env),
        context_(context),
        stream_(*stream),
        started_(env.clock->Now()),
        about_(std::move(about)),
        moved_(started_),
        in_flight_(env.peers->Enter()) {}

  std::optional<guard::Refusal> Open(const v1::TransferHeader& header);
  std::optional<guard::Refusal> OpenSource(TransferInput input);
  std::optional<guard::Refusal> OpenMap(TransferInput input);
  void Call(const Peer& peer, v1::TransferHeader header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void EndInput() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeMessage();
  void TakeEvent();
  void TakeDecision(v1::Decision decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Accepted(v1::TransferEvent event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeFrames(RelaySource::Answer answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendFrame(CacheChunk frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FrameLeft() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FrameTaken(const absl::Status& status);
  void EndSource() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Fail(guard::Refusal refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DecideHere(guard::Refusal refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Decide(v1::Decision decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Announce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Abandon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm();

  // Does whatever can be done now: the only place that starts gRPC operations.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpSource() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpCaller() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpPeer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return frames_under_way_ < env_.peers->frames_in_flight();
  }

  const TransferEnv env_;
  grpc::CallbackServerContext* const context_;
  Stream& stream_;
  const absl::Time started_;
  std::string peer_name_;
  guard::TransferSpec spec_;
  grpc::ByteBuffer incoming_;            // the reader's own
  std::shared_ptr<RelaySource> source_;  // one thread at a time: see taking_
  std::shared_ptr<RelayMap> map_;        // the same, if it maps

  base::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kCalling;
  DecisionContext about_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);  // as TransferSession's
  absl::Time moved_ ABSL_GUARDED_BY(mutex_);
  absl::Time give_up_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();  // waiting for the peer
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const void> in_flight_ ABSL_GUARDED_BY(mutex_);  // until it is decided
  std::optional<guard::Refusal> failure_ ABSL_GUARDED_BY(mutex_);  // that the peer was told
  std::optional<v1::Decision> verdict_ ABSL_GUARDED_BY(mutex_);    // the peer's, or for want of it

  // The caller's stream.
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool input_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<grpc::ByteBuffer> to_caller_ ABSL_GUARDED_BY(mutex_);

  // The peer's.
  PeerCall call_;
  bool peer_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_over_ ABSL_GUARDED_BY(mutex_) = true;  // no operation may be started
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_decided_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<ToPeer> to_peer_ ABSL_GUARDED_BY(mutex_);  // the front is being written if writing
  std::unique_ptr<ucx::Outbox> outbox_ ABSL_GUARDED_BY(mutex_);  // null: frames go in the call
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;                  // somebody is in source_
  int frames_under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvbridge::server
