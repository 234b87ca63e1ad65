#include "core/ucx/outbox_core.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/clock.h"
#include "core/ucx/frame.h"
#include "core/ucx/status.h"

namespace kvbridge::ucx {

void OutboxCore::Connect(const SocketAddress& address) {
  auto connection =
      Connection::Connect(worker_, address, [worker = worker_, weak = weak_from_this()](auto why) {
        worker->Post([weak, why] {
          if (const auto self = weak.lock()) self->Fail(why);
        });
      });
  if (!connection.ok()) return Fail(connection.status());
  connection_ = *std::move(connection);
}

void OutboxCore::Send(const std::string& head, std::span<const std::byte> payload,
                      Outbox::OnSent on_sent) {
  if (!failure_.ok()) return on_sent(failure_);
  under_way_.push_back(
      {.core = this,
       .header = EncodeHeader({.token = token_, .sequence = sequence_++, .head = head}),
       .bytes = payload.size(),
       .since = base::SteadyNow(),
       .on_sent = std::move(on_sent)});
  const auto frame = std::prev(under_way_.end());
  frame->self = frame;
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY;
  param.user_data = &*frame;
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    ucp_request_free(request);
    auto* sending = static_cast<Sending*>(user_data);
    sending->core->Sent(sending->self, status);
  };
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(connection_->endpoint(), kFrameMessage, frame->header.data(),
                      frame->header.size(), payload.data(), payload.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) Sent(frame, UCS_PTR_STATUS(request));
}

void OutboxCore::Sent(std::list<Sending>::iterator frame, ucs_status_t status) {
  const Sending sent = std::move(*frame);
  under_way_.erase(frame);
  if (status == UCS_OK) {
    on_taken_(sent.bytes);
    return sent.on_sent(absl::OkStatus());
  }
  sent.on_sent(failure_.ok() ? FromUcs(status, "ucx: frame") : failure_);
}

void OutboxCore::CheckTimeout(absl::Time now, absl::Duration timeout) {
  if (under_way_.empty() || now - under_way_.front().since < timeout) return;
  Fail(absl::UnavailableError(
      absl::StrCat("ucx: the peer took no frame for ", absl::FormatDuration(timeout))));
}

// Closing cancels what is under way: `Sent` is called for each, with this failure.
void OutboxCore::Fail(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
  connection_.reset();
}

void OutboxCore::Close() {
  if (connection_ != nullptr && under_way_.empty()) connection_->Flush();
  Fail(absl::CancelledError("ucx: the outbox was closed"));
}

}  // namespace kvbridge::ucx
