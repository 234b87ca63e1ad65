#include "core/ucx/inbox_core.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/ucx/status.h"

namespace kvbridge::ucx {
namespace {

constexpr size_t kMaxAnnounced = 64;  // no sender of ours has more under way

}  // namespace

void InboxCore::Announce(const FrameHeader& header, void* announced, size_t bytes) {
  frames_.push_back(std::make_unique<Incoming>(
      Incoming{this, header.sequence, std::string(header.head), bytes, announced}));
  PostPump();
  if (header.sequence != next_sequence_++) {
    failure_ = absl::DataLossError(
        absl::StrCat("frame: expected number ", next_sequence_ - 1, ", got ", header.sequence));
  } else if (bytes > max_frame_bytes_ || frames_.size() > kMaxAnnounced) {
    failure_ = absl::DataLossError(absl::StrCat("frame: expected at most ", max_frame_bytes_,
                                                " bytes and ", kMaxAnnounced, " under way, got ",
                                                bytes, " and ", frames_.size()));
  }
}

// Not from inside UCX's callbacks.
void InboxCore::PostPump() {
  worker_->Post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Pump();
  });
}

void InboxCore::Pump() {
  if (!failure_.ok()) return Fail(failure_);
  for (auto frame = frames_.begin(); frame != frames_.end() && !free_.empty(); ++frame) {
    if ((*frame)->announced != nullptr) Receive(frame->get());
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
  if (!frames_.empty() && frames_.front()->received) {
    Incoming frame = std::move(*frames_.front());
    frames_.pop_front();
    std::exchange(reader_, nullptr)(Lend(std::move(frame)));
  } else if (!failure_.ok()) {
    std::exchange(reader_, nullptr)(failure_);
  }
}

Frame InboxCore::Lend(Incoming frame) {
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
  return {frame.sequence, std::move(frame.head), payload, std::move(lease)};
}

// Ends the connection; what is being received completes, with an error, into its own buffer. What
// is only announced is released after that: UCX would tell the sender that it was taken.
void InboxCore::Fail(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
  connection_.reset();
  for (const auto& frame : frames_) {
    if (void* announced = std::exchange(frame->announced, nullptr)) {
      ucp_am_data_release(worker_->handle(), announced);
    }
  }
  Deliver();
}

void InboxCore::Close() {
  closed_ = true;
  reader_ = nullptr;
  free_.clear();
  Fail(absl::CancelledError("ucx: the inbox was closed"));
}

}  // namespace kvbridge::ucx
