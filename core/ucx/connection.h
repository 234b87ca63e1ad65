// One UCX endpoint between two sockets' addresses, closed when destroyed. A peer that dies is told
// of (error handling mode PEER).
//
// Thread contract: the worker's thread only.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <ucp/api/ucp.h>

#include "core/ucx/socket_address.h"
#include "core/ucx/worker.h"

namespace kvbridge::ucx {

class Connection {
 public:
  // Called from inside UCX, at most once, never after the connection was destroyed: post what
  // closes it.
  using OnFailed = std::function<void(absl::Status)>;

  // Whoever does not answer there fails it later.
  static absl::StatusOr<std::unique_ptr<Connection>> Connect(Worker* worker,
                                                             const SocketAddress& address,
                                                             OnFailed on_failed);
  static absl::StatusOr<std::unique_ptr<Connection>> Accept(Worker* worker,
                                                            ucp_conn_request_h request,
                                                            OnFailed on_failed);
  // Without `Flush` what is under way is cancelled: each operation still completes, with an error.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // What is under way shall arrive before the connection ends.
  void Flush() { flush_ = true; }

  ucp_ep_h endpoint() const { return endpoint_; }

 private:
  Connection(Worker* worker, OnFailed on_failed);
  absl::Status Open(ucp_ep_params_t params);

  Worker* const worker_;
  const OnFailed on_failed_;
  ucp_ep_h endpoint_ = nullptr;
  bool flush_ = false;
};

}  // namespace kvbridge::ucx
