#include "core/ucx/inbox_core.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/ucx/status.h"

namespace kvbridge::ucx {
namespace {

constexpr uint64_t kMaxAnnounced = 64;  // no sender of ours has more under way

}  // namespace

// While a connection is set up, UCX may let a frame overtake another.
void InboxCore::Announce(const FrameHeader& header, void* announced, size_t bytes) {
  const auto [frame, added] = frames_.emplace(header.sequence, nullptr);
  PostPump();
  const bool in_window =
      header.sequence >= next_received_ && header.sequence - next_delivered_ < kMaxAnnounced;
  if (!added || !in_window || bytes > max_frame_bytes_) {
    if (added) frames_.erase(frame);
    refused_.push_back(announced);
    failure_.Update(absl::DataLossError(
        absl::StrCat("frame: expected a new one of number ", next_received_, " to ",
                     next_delivered_ + kMaxAnnounced - 1, " and at most ", max_frame_bytes_,
                     " bytes, got ", bytes, " bytes of number ", header.sequence)));
    return;
  }
  frame->second =
      std::make_unique<Incoming>(Incoming{this, std::string(header.head), bytes, announced});
}

// Not from inside UCX's callbacks.
void InboxCore::PostPump() {
  worker_->Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Pump();
  });
}

// In sequence: a later frame must not take the last buffer.
void InboxCore::Pump() {
  if (!failure_.ok()) return Fail(failure_);
  while (!free_.empty()) {
    const auto frame = frames_.find(next_received_);
    if (frame == frames_.end()) break;
    ++next_received_;
    Receive(frame->second.get());
  }
  Deliver();
}

void InboxCore::Receive(Incoming* frame) {
  frame->buffer = std::move(free_.back());
  free_.pop_back();
  ++receiving_;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = frame;
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* user_data) {
    ucp_request_free(request);
    auto* incoming = static_cast<Incoming*>(user_data);
    incoming->core->Received(incoming, status);
  };
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->handle(), std::exchange(frame->announced, nullptr),
                           frame->buffer->data(), frame->bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) Received(frame, UCS_PTR_STATUS(request));
}

void InboxCore::Received(Incoming* frame, ucs_status_t status) {
  --receiving_;
  if (status == UCS_OK) {
    frame->received = true;
    on_received_(frame->bytes);
  } else if (failure_.ok()) {
    failure_ = FromUcs(status, "ucx: frame");
  }
  PostPump();
}

void InboxCore::Read(Inbox::OnFrame on_frame) {
  reader_ = std::move(on_frame);
  Deliver();
}

void InboxCore::Deliver() {
  if (reader_ == nullptr) return;
  const auto frame = frames_.find(next_delivered_);
  if (frame != frames_.end() && frame->second->received) {
    Incoming incoming = std::move(*frame->second);
    frames_.erase(frame);
    std::exchange(reader_, nullptr)(Lend(next_delivered_++, std::move(incoming)));
  } else if (!failure_.ok()) {
    std::exchange(reader_, nullptr)(failure_);
  }
}

Frame InboxCore::Lend(uint64_t sequence, Incoming frame) {
  const std::span<const std::byte> payload(frame.buffer->data(), frame.bytes);
  std::shared_ptr<const void> lease(payload.data(),
                                    [worker = worker_, weak = weak_from_this(),
                                     buffer = std::move(frame.buffer)](const void*) mutable {
                                      worker->Post([weak, buffer = std::move(buffer)] {
                                        const auto self = weak.lock();
                                        if (self == nullptr || self->closed_) return;
                                        self->free_.push_back(buffer);
                                        self->Pump();
                                      });
                                    });
  return {sequence, std::move(frame.head), payload, std::move(lease)};
}

// Ends the connection; what is being received completes, with an error, into its own buffer. What
// is only announced is released after that: UCX would tell the sender that it was taken.
void InboxCore::Fail(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
  connection_.reset();
  for (const auto& [sequence, frame] : frames_) {
    if (frame->announced != nullptr) refused_.push_back(std::exchange(frame->announced, nullptr));
  }
  for (void* announced : refused_) ucp_am_data_release(worker_->handle(), announced);
  refused_.clear();
  Deliver();
}

void InboxCore::Close() {
  closed_ = true;
  reader_ = nullptr;
  free_.clear();
  Fail(absl::CancelledError("ucx: the inbox was closed"));
}

}  // namespace kvbridge::ucx
