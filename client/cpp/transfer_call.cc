#include "client/cpp/transfer_call.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/cpp/chunk_source.h"
#include "client/cpp/grpc_status.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/kvbridge/v1/chunk_codec.h"

namespace kvbridge::client {
namespace {

constexpr char kMethod[] = "/kvbridge.v1.KvBridge/Transfer";

// Reads and writes run on gRPC's threads, one of each at a time, beside each other: what only reads
// touch and what only writes touch needs no lock. They meet in `write_gate_` and `stopped_`.
class TransferCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  TransferCall(const SourceView& source, int64_t tokens, std::shared_ptr<ChunkBuffers> buffers,
               AnswerSink* sink)
      : view_(source), tokens_(tokens), buffers_(std::move(buffers)), sink_(sink) {}

  CallReport Run(const std::shared_ptr<grpc::Channel>& channel, const v1::TransferHeader& header,
                 absl::Time deadline, const std::stop_token& stop) {
    if (deadline < absl::InfiniteFuture()) context_.set_deadline(absl::ToChronoTime(deadline));
    v1::TransferRequest request;
    *request.mutable_header() = header;
    write_ = wire::Serialize(request);
    grpc::GenericStub stub(channel);
    stub.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
    started_ = absl::Now();
    StartWrite(&write_);
    StartRead(&read_);
    {
      // Before the call starts: one that was stopped already sends nothing.
      const std::stop_callback cancel(stop, [this] { context_.TryCancel(); });
      StartCall();
      std::unique_lock lock(mutex_);
      over_.wait(lock, [this] { return done_; });
    }
    report_.bytes_sent = chunks_.has_value() ? chunks_->bytes() : 0;
    if (!answer_.ok()) report_.status = absl::DataLossError(answer_.message());
    return std::move(report_);
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) return;  // the call is over; its status says why
    if (!header_written_) {
      header_written_ = true;
      OpenWriteGate();
      return;
    }
    report_.timings.sending = absl::Now() - accepted_at_;
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // the status follows
    answer_ = Take(std::exchange(read_, {}));
    if (answer_.ok()) {
      StartRead(&read_);
    } else {
      stopped_.store(true, std::memory_order_relaxed);
      context_.TryCancel();
    }
  }

  void OnDone(const grpc::Status& status) override {
    report_.status = FromGrpcStatus(status);
    if (report_.status.ok() && !report_.decision.has_value()) {
      report_.status = absl::DataLossError("the server closed the stream without Completed");
    }
    // Under the lock: the waiter destroys this object.
    const std::lock_guard lock(mutex_);
    done_ = true;
    over_.notify_one();
  }

  // Opened by the second of: the header is written, the request is accepted.
  void OpenWriteGate() {
    if (write_gate_.fetch_sub(1) == 1) WriteNext();
  }

  void WriteNext() {
    if (last_written_ || stopped_.load(std::memory_order_relaxed)) return;
    write_ = chunks_->Next();
    last_written_ = chunks_->done();
    if (last_written_) {
      StartWriteLast(&write_, grpc::WriteOptions());
    } else {
      StartWrite(&write_);
    }
  }

  absl::Status Take(grpc::ByteBuffer message) {
    auto event = wire::ParseEvent(message);
    if (!event.ok()) return event.status();
    if (report_.decision.has_value()) {
      return absl::DataLossError("the server sent an event after Completed");
    }
    if (const auto* chunk = std::get_if<wire::ReceivedChunk>(&*event)) return TakeChunk(*chunk);
    auto& known = std::get<v1::TransferEvent>(*event);
    if (known.has_accepted()) return TakeAccepted(known.accepted());
    if (known.has_completed()) TakeCompleted(std::move(*known.mutable_completed()));
    return absl::OkStatus();
  }

  absl::Status TakeAccepted(const v1::TransferAccepted& accepted) {
    if (report_.accepted) return absl::DataLossError("the server sent Accepted twice");
    if (accepted.covered_tokens() > tokens_) {
      return absl::OutOfRangeError(absl::StrCat("accepted.covered_tokens: expected at most ",
                                                tokens_, ", got ", accepted.covered_tokens()));
    }
    if (absl::Status status = sink_->Open(accepted.covered_tokens()); !status.ok()) return status;
    report_.accepted = true;
    accepted_at_ = absl::Now();
    report_.timings.admission = accepted_at_ - started_;
    chunks_.emplace(view_, tokens_, accepted.tile_tokens(), buffers_);
    OpenWriteGate();
    return absl::OkStatus();
  }

  absl::Status TakeChunk(const wire::ReceivedChunk& chunk) {
    if (!report_.accepted) return absl::DataLossError("the server sent a chunk before Accepted");
    if (sink_->bytes() == 0) first_chunk_at_ = absl::Now();
    return sink_->Take(chunk);
  }

  void TakeCompleted(v1::TransferCompleted completed) {
    stopped_.store(true, std::memory_order_relaxed);
    if (sink_->bytes() > 0) report_.timings.receiving = absl::Now() - first_chunk_at_;
    report_.decision = std::move(*completed.mutable_decision());
  }

  const SourceView& view_;
  const int64_t tokens_;
  const std::shared_ptr<ChunkBuffers> buffers_;
  AnswerSink* const sink_;
  grpc::ClientContext context_;
  absl::Time started_;

  std::atomic<int> write_gate_{2};
  std::atomic<bool> stopped_{false};  // nothing more needs to be sent

  // Written by reads before the gate opens, by writes after it.
  std::optional<ChunkSource> chunks_;
  absl::Time accepted_at_;
  // Writes only.
  grpc::ByteBuffer write_;
  bool header_written_ = false;
  bool last_written_ = false;
  // Reads only.
  grpc::ByteBuffer read_;
  absl::Time first_chunk_at_;
  absl::Status answer_;  // what is wrong with the answer

  CallReport report_;  // each field by one side; whole after done_
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;  // guarded by mutex_
};

}  // namespace

CallReport RunTransferCall(const std::shared_ptr<grpc::Channel>& channel,
                           const v1::TransferHeader& header, absl::Time deadline,
                           const std::stop_token& stop, const SourceView& source,
                           const std::shared_ptr<ChunkBuffers>& buffers, AnswerSink* sink) {
  TransferCall call(source, header.source_selection().tokens(), buffers, sink);
  return call.Run(channel, header, deadline, stop);
}

}  // namespace kvbridge::client
