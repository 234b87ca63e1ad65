// One Transfer stream: header in, one decision out, and between them source tokens that become
// target layers, whichever planes they come and go by (source_plane.h, target_plane.h).
//
//   read message -> source plane -> ready tokens -> engine (worker) -> target tile -> write
//
// Memory is bounded whatever the client does: at most `tiles_in_flight` tiles are being mapped or
// sent, as many wait or fill, one message is read and one written at a time. A client that does not
// read stops its own upload, and nobody else's. One that neither sends nor reads for the idle
// timeout falls back, so that what it had reserved is free again; if it does not take that answer
// either, the stream is cancelled.
//
// Pages of a pool are the caller's again when it reads SourceReleased or Completed: neither is sent
// while a worker may still touch them.
//
// Threads: gRPC's threads call the On... methods, workers call back from tiles, the alarm from its
// own thread. What they share is guarded by one mutex; gRPC operations are started under it, which
// keeps them in order (gRPC never runs a reaction inside the call that starts the operation).
//
// Lifetime: the session owns itself until OnDone; whoever still works for it (a worker, the alarm)
// holds a reference, so it is destroyed when the last of them has left.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"
#include "core/engine/transfer_engine.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/begin_transfer.h"
#include "server/convert.h"
#include "server/relay_session.h"
#include "server/source_plane.h"
#include "server/target_plane.h"

namespace kvbridge::server {

// Key of engine::RateMeter for the time that bytes take to come in and to leave.
inline constexpr absl::string_view kInlineIn = "inline:in";
inline constexpr absl::string_view kInlineOut = "inline:out";

class TransferSession final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                              public std::enable_shared_from_this<TransferSession> {
 public:
  // The reactor of a new stream; it needs no owner.
  static TransferSession* Start(const TransferEnv& env, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Phase {
    kHeader,     // nothing understood yet
    kStreaming,  // admitted
    kClosing,    // decided: what is in the outbox still leaves
    kFinished,   // the status is on its way
  };

  // A tile from its submission until its last byte was sent.
  struct OpenTile {
    int64_t tokens = 0;
    int unsent = 0;       // messages in the outbox or being written
    bool mapped = false;  // no more messages will come
  };

  struct Outgoing {
    OutgoingMessage message;
    std::shared_ptr<OpenTile> tile;  // null for messages about the whole transfer
  };
  using TilePtr = std::shared_ptr<OpenTile>;

  TransferSession(const TransferEnv& env, grpc::CallbackServerContext* context);

  void TakeMessage();
  void TakeHeader(const v1::TransferHeader& header);
  std::shared_ptr<RelaySession> relay() {
    base::MutexLock lock(&mutex_);
    return relay_;
  }
  void Accept(BegunTransfer begun) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Message>
  void TakeSource(const Message& message);
  void Queue(std::vector<SourceTile> tiles) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndInput();
  void TakeFrame(absl::StatusOr<ucx::Frame> frame);
  bool HasInbox() {
    base::MutexLock lock(&mutex_);
    return inbox_ != nullptr;
  }

  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm();

  void SubmitTile(SourceTile tile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  engine::TileWork Work(SourceTile tile, std::shared_ptr<const TargetTile> target);
  void SourceRead();
  void LayersMapped(const TargetTile& target, kv::LayerRange layers, const TilePtr& open);
  void TileMapped(const TilePtr& open, const absl::Status& status);
  void CloseIfSent(const TilePtr& open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Refuse(guard::Refusal refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Malformed(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Abandon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Decide(const engine::Decision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayFinish() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishTransfer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Record(const engine::Decision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(OutgoingMessage message, TilePtr tile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Does whatever can be done now: the only place that starts gRPC operations.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpTiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpInbox() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ready_.size() + sources_ < tile_limit_;
  }
  void PumpWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TransferEnv env_;
  grpc::CallbackServerContext* const context_;
  const absl::Time started_;
  const TraceContext trace_;
  const size_t tile_limit_;
  std::shared_ptr<TransferSession> self_;  // until OnDone

  // The reader's own: touched between a read's completion and the start of the next.
  grpc::ByteBuffer incoming_;

  base::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kHeader;
  DecisionContext about_ ABSL_GUARDED_BY(mutex_);
  // While kStreaming. The reader alone calls the source, and does so without the lock.
  std::shared_ptr<engine::Transfer> transfer_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<SourcePlane> source_ ABSL_GUARDED_BY(mutex_);  // until it has been read
  std::shared_ptr<TargetPlane> target_ ABSL_GUARDED_BY(mutex_);
  // Where chunks come from, if not in the stream; then the inbox's reads take the reader's place.
  std::unique_ptr<ucx::Inbox> inbox_ ABSL_GUARDED_BY(mutex_);
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;  // until the frame is dealt with
  // Drives the stream of a transfer whose target is beside a peer; then nothing else here does.
  std::shared_ptr<RelaySession> relay_ ABSL_GUARDED_BY(mutex_);
  // A new one each time: an alarm that is set again destroys the callback that sets it.
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  absl::Time moved_ ABSL_GUARDED_BY(mutex_);      // when the stream last made progress
  absl::Status status_ ABSL_GUARDED_BY(mutex_);   // how the stream ends
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // until the message is dealt with
  bool stream_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool input_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time read_started_ ABSL_GUARDED_BY(mutex_);
  absl::Time write_started_ ABSL_GUARDED_BY(mutex_);
  std::deque<SourceTile> ready_ ABSL_GUARDED_BY(mutex_);  // not submitted
  int64_t unsubmitted_ ABSL_GUARDED_BY(mutex_) = 0;       // covered tokens that no tile had yet
  size_t sources_ ABSL_GUARDED_BY(mutex_) = 0;            // submitted, source memory in use
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;            // submitted, a worker may be inside
  size_t open_tiles_ ABSL_GUARDED_BY(mutex_) = 0;         // submitted, not sent in full
  std::deque<Outgoing> outbox_ ABSL_GUARDED_BY(mutex_);   // the front is being written if writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvbridge::server
