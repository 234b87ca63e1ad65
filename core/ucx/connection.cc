#include "core/ucx/connection.h"

#include <utility>

#include "core/base/status_macros.h"
#include "core/ucx/status.h"

namespace kvbridge::ucx {

Connection::Connection(Worker* worker, OnFailed on_failed)
    : worker_(worker), on_failed_(std::move(on_failed)) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Connect(Worker* worker,
                                                                const SocketAddress& address,
                                                                OnFailed on_failed) {
  std::unique_ptr<Connection> connection(new Connection(worker, std::move(on_failed)));
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {address.get(), address.size()};
  KVB_RETURN_IF_ERROR(connection->Open(params));
  return connection;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Accept(Worker* worker,
                                                               ucp_conn_request_h request,
                                                               OnFailed on_failed) {
  std::unique_ptr<Connection> connection(new Connection(worker, std::move(on_failed)));
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  KVB_RETURN_IF_ERROR(connection->Open(params));
  return connection;
}

absl::Status Connection::Open(ucp_ep_params_t params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
    static_cast<Connection*>(self)->on_failed_(FromUcs(status, "ucx: the peer is gone"));
  };
  return FromUcs(ucp_ep_create(worker_->handle(), &params, &endpoint_), "ucx: connection");
}

Connection::~Connection() {
  if (endpoint_ != nullptr) worker_->CloseEndpoint(endpoint_, flush_);
}

}  // namespace kvbridge::ucx
