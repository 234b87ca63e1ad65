#include "client/cpp/transfer_call.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

#include "client/cpp/chunk_source.h"
#include "client/cpp/grpc_status.h"
#include "client/cpp/layer_progress.h"
#include "client/cpp/steady_clock.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "proto/kvbridge/v1/chunk_codec.h"

namespace kvbridge::client {
namespace {

constexpr char kMethod[] = "/kvbridge.v1.KvBridge/Transfer";
constexpr char kTraceparent[] = "traceparent";

// Reads and writes run on gRPC's threads, one of each at a time, beside each other: what only reads
// touch and what only writes touch needs no lock. They meet in `write_gate_` and `stopped_`.
class TransferCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit TransferCall(const CallRequest& request) : request_(request) {}

  CallReport Run(const std::shared_ptr<grpc::Channel>& channel) {
    if (request_.deadline < absl::InfiniteFuture()) {
      context_.set_deadline(ToGrpcDeadline(request_.deadline));
    }
    if (const TransferOptions& options = request_.options; !options.traceparent.empty()) {
      context_.AddMetadata(kTraceparent, options.traceparent);
      if (!options.tracestate.empty()) context_.AddMetadata("tracestate", options.tracestate);
    }
    v1::TransferRequest first;
    *first.mutable_header() = request_.header;
    write_ = wire::Serialize(first);
    grpc::GenericStub stub(channel);
    stub.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
    started_ = SteadyNow();
    const bool streamed = request_.header.streamed_source();
    if (streamed) AddHold();  // for writes of this thread
    StartWrite(&write_);
    StartRead(&read_);
    {
      // Before the call starts: one that was stopped already sends nothing.
      const std::stop_callback cancel(request_.stop, [this] { context_.TryCancel(); });
      StartCall();
      if (streamed) {
        SendProgress();
        RemoveHold();
      }
      AwaitEnd();
    }
    report_.bytes_sent = chunks_.has_value() ? chunks_->bytes() : 0;
    if (!answer_.ok()) report_.status = absl::DataLossError(answer_.message());
    return std::move(report_);
  }

 private:
  // gRPC's own timers sleep by the calendar: they are late where it is set back meanwhile.
  void AwaitEnd() {
    const auto over = [this] { return done_; };
    bool late = false;
    std::unique_lock lock(mutex_);
    if (request_.deadline < absl::InfiniteFuture() &&
        !over_.wait_until(lock, ToSteady(request_.deadline), over)) {
      lock.unlock();
      context_.TryCancel();
      lock.lock();
      late = true;
    }
    over_.wait(lock, over);
    if (late && absl::IsCancelled(report_.status)) {
      report_.status = absl::DeadlineExceededError("the call's deadline passed");
    }
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return EndProgress();  // the call is over; its status says why
    if (!header_written_) {
      header_written_ = true;
      OpenWriteGate();
      return;
    }
    report_.timings.sending = SteadyNow() - accepted_at_;
    if (request_.source == nullptr) return ProgressWritten();
    WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndProgress();  // the status follows
    answer_ = Take(std::exchange(read_, {}));
    if (answer_.ok()) {
      StartRead(&read_);
    } else {
      stopped_.store(true, std::memory_order_relaxed);
      EndProgress();
      context_.TryCancel();
    }
  }

  void OnDone(const grpc::Status& status) override {
    report_.status = FromGrpcStatus(status);
    const auto& trailing = context_.GetServerTrailingMetadata();
    if (const auto span = trailing.find(kTraceparent); span != trailing.end()) {
      report_.traceparent.assign(span->second.data(), span->second.size());
    }
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

  // On the caller's thread: word of the source pool, each time there is more.
  void SendProgress() {
    int64_t told = 0;
    while (const auto more = request_.options.progress->Beyond(told, request_.deadline, deaf_)) {
      std::unique_lock lock(mutex_);
      over_.wait(lock, [this] { return progress_ != Progress::kBusy; });
      if (progress_ == Progress::kOver) return;
      progress_ = Progress::kBusy;
      lock.unlock();
      told = *more;
      v1::TransferRequest ready;
      ready.mutable_ready_up_to()->set_token_end(
          std::min(told, request_.header.source_selection().tokens()));
      write_ = wire::Serialize(ready);
      StartWrite(&write_);
    }
    std::unique_lock lock(mutex_);
    over_.wait(lock, [this] { return progress_ != Progress::kBusy; });
    if (progress_ == Progress::kIdle) StartWritesDone();
  }

  void ProgressWritten() {
    const std::lock_guard lock(mutex_);
    if (progress_ == Progress::kBusy) progress_ = Progress::kIdle;
    over_.notify_all();
  }

  // The server listens no more.
  void EndProgress() {
    if (!request_.header.streamed_source()) return;
    deaf_ = true;
    request_.options.progress->Wake();
    const std::lock_guard lock(mutex_);
    progress_ = Progress::kOver;
    over_.notify_all();
  }

  void WriteNext() {
    if (last_written_ || stopped_.load(std::memory_order_relaxed)) return;
    if (request_.source == nullptr) {
      last_written_ = true;
      if (request_.header.streamed_source()) return ProgressWritten();
      return StartWritesDone();
    }
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
    if (known.has_layers_ready() && layers_.has_value()) return layers_->Add(known.layers_ready());
    if (known.has_source_released() && request_.options.on_source_released) {
      request_.options.on_source_released();
    }
    if (known.has_completed()) TakeCompleted(std::move(*known.mutable_completed()));
    return absl::OkStatus();
  }

  absl::Status TakeAccepted(const v1::TransferAccepted& accepted) {
    if (report_.accepted) return absl::DataLossError("the server sent Accepted twice");
    const v1::TransferHeader& header = request_.header;
    const int64_t tokens = header.source_selection().tokens();
    const int64_t covered = accepted.covered_tokens();
    if (covered > tokens || covered < header.first_token()) {
      return absl::OutOfRangeError(absl::StrCat("accepted.covered_tokens: expected ",
                                                header.first_token(), " to ", tokens, ", got ",
                                                covered));
    }
    if (request_.sink != nullptr) {
      if (absl::Status status = request_.sink->Open(covered); !status.ok()) return status;
    }
    report_.accepted = true;
    report_.covered_tokens = covered;
    if (!header.peer().empty()) report_.peer_plane = accepted.plane();
    accepted_at_ = SteadyNow();
    report_.timings.admission = accepted_at_ - started_;
    layers_.emplace(header.target().geometry().layers(), covered - header.first_token(),
                    request_.options.on_layers);
    if (request_.source != nullptr) {
      chunks_.emplace(*request_.source, tokens, accepted.tile_tokens(), request_.buffers,
                      header.first_token());
    }
    OpenWriteGate();
    return absl::OkStatus();
  }

  absl::Status TakeChunk(const wire::ReceivedChunk& chunk) {
    if (!report_.accepted) return absl::DataLossError("the server sent a chunk before Accepted");
    if (request_.sink == nullptr) return absl::DataLossError("the server sent a chunk to a pool");
    if (request_.sink->bytes() == 0) first_chunk_at_ = SteadyNow();
    return request_.sink->Take(chunk);
  }

  void TakeCompleted(v1::TransferCompleted completed) {
    stopped_.store(true, std::memory_order_relaxed);
    if (request_.sink != nullptr && request_.sink->bytes() > 0) {
      report_.timings.receiving = SteadyNow() - first_chunk_at_;
    }
    report_.decision = std::move(*completed.mutable_decision());
  }

  // Word of a streamed source: one write at a time, none once the server listens no more.
  enum class Progress { kBusy, kIdle, kOver };

  const CallRequest& request_;
  grpc::ClientContext context_;
  absl::Time started_;

  std::atomic<int> write_gate_{2};
  std::atomic<bool> deaf_{false};     // nobody listens to how far the source is
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
  std::optional<LayerProgress> layers_;
  absl::Status answer_;  // what is wrong with the answer

  CallReport report_;  // each field by one side; whole after done_
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;                    // guarded by mutex_
  Progress progress_ = Progress::kBusy;  // guarded by mutex_; with the header at first
};

}  // namespace

CallReport RunTransferCall(const std::shared_ptr<grpc::Channel>& channel,
                           const CallRequest& request) {
  TransferCall call(request);
  return call.Run(channel);
}

}  // namespace kvbridge::client
