// One Transfer stream on the inline plane: header, chunks in, mapped chunks out, one decision.
//
//   read chunk -> verify -> tile assembler -> complete tile -> engine (worker) -> chunks -> write
//
// Memory is bounded whatever the client does: at most `tiles_in_flight` tiles are being mapped or
// sent, as many wait or fill, one message is read and one written at a time. A client that does not
// read stops its own upload, and nobody else's. One that neither sends nor reads for the idle timeout
// falls back, so that what it had reserved is free again; if it does not take that answer either,
// the stream is cancelled.
//
// Threads: gRPC's threads call the On... methods, workers call back from tiles, the alarm from its
// own thread. What they share is guarded by one mutex; gRPC operations are started under it, which
// keeps them in order (gRPC never runs a reaction inside the call that starts the operation).
//
// Lifetime: the session owns itself until OnDone; whoever still works for it (a worker, the alarm)
// holds a reference, so it is destroyed when the last of them has left.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/engine/transfer_engine.h"
#include "core/kv/buffer_pool.h"
#include "core/kv/tile_assembler.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/kvbridge/v1/chunk_codec.h"
#include "server/convert.h"
#include "server/decision_recorder.h"
#include "server/route_table.h"
#include "server/target_tile.h"

namespace kvbridge::server {

// Key of engine::RateMeter for the time that bytes take to come in and to leave.
inline constexpr absl::string_view kInlineIn = "inline:in";
inline constexpr absl::string_view kInlineOut = "inline:out";

// What all sessions share. Borrowed; outlives them.
struct TransferEnv {
  RouteTable* routes = nullptr;
  engine::TransferEngine* engine = nullptr;
  std::shared_ptr<kv::BufferPool> buffers;
  const base::Clock* clock = nullptr;
  DecisionRecorder* recorder = nullptr;
  const std::atomic<bool>* draining = nullptr;  // new transfers are refused
  absl::Duration idle_timeout;                  // longest time without a byte in or out
};

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
  std::variant<std::shared_ptr<engine::Transfer>, engine::Decision> Begin(
      const v1::TransferHeader& header);
  void Accept(std::shared_ptr<engine::Transfer> transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeChunk(const wire::ReceivedChunk& chunk);
  std::optional<guard::Refusal> Assemble(const wire::ReceivedChunk& chunk,
                                         std::vector<kv::Tile>* complete);
  void EndInput();

  void SetAlarm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAlarm();

  void SubmitTile(kv::Tile tile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  engine::TileWork MakeWork(kv::Tile tile, kv::TokenRange tokens, TargetTile target);
  void LayersMapped(const TargetTile& target, kv::LayerRange layers, const TilePtr& open);
  void TileMapped(const TilePtr& open);
  void CloseIfSent(const TilePtr& open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Refuse(guard::Refusal refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Malformed(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Abandon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Decide(const engine::Decision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishTransfer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Record(const engine::Decision& decision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(OutgoingMessage message, TilePtr tile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Does whatever can be done now: the only place that starts gRPC operations.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpTiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PumpWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TransferEnv env_;
  grpc::CallbackServerContext* const context_;
  const absl::Time started_;
  const size_t tile_limit_;
  std::shared_ptr<TransferSession> self_;  // until OnDone

  // The reader's own: touched between a read's completion and the start of the next.
  grpc::ByteBuffer incoming_;
  TransferInput input_;
  std::optional<kv::TileAssembler> assembler_;

  base::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kHeader;
  DecisionContext about_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<engine::Transfer> transfer_ ABSL_GUARDED_BY(mutex_);  // while kStreaming
  // A new one each time: an alarm that is set again destroys the callback that sets it.
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  absl::Time moved_ ABSL_GUARDED_BY(mutex_);      // when the stream last made progress
  absl::Status status_ ABSL_GUARDED_BY(mutex_);   // how the stream ends
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;  // until the message is dealt with
  bool input_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time read_started_ ABSL_GUARDED_BY(mutex_);
  absl::Time write_started_ ABSL_GUARDED_BY(mutex_);
  std::deque<kv::Tile> ready_ ABSL_GUARDED_BY(mutex_);   // complete, not submitted
  size_t sources_ ABSL_GUARDED_BY(mutex_) = 0;           // submitted, source memory in use
  size_t open_tiles_ ABSL_GUARDED_BY(mutex_) = 0;        // submitted, not sent in full
  std::deque<Outgoing> outbox_ ABSL_GUARDED_BY(mutex_);  // the front is being written if writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvbridge::server
