// One Transfer call from this kvbridged to another: a gRPC reactor that hands what happens to its
// owner, whose lock guards every operation that is started.
//
// Thread contract: as grpc::ClientBidiReactor's. The owner's methods are called without a lock.
#pragma once

#include <memory>
#include <utility>

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/status.h"

namespace kvbridge::server {

class PeerCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnPeerRead(bool ok) = 0;
    virtual void OnPeerWritten(bool ok) = 0;
    virtual void OnPeerDone(const grpc::Status& status) = 0;
  };

  PeerCall() = default;

  // Keeps `owner` alive until the call is over. Then, and not before, the call may be destroyed.
  // An idle call may not end between two operations: until Release it is held.
  void Start(const std::shared_ptr<grpc::Channel>& channel, std::shared_ptr<Owner> owner);
  void Release() {
    if (std::exchange(held_, false)) RemoveHold();
  }

  grpc::ClientContext& context() { return context_; }
  grpc::ByteBuffer& incoming() { return incoming_; }  // after OnPeerRead(true)

  void Read() { StartRead(&incoming_); }
  void Write(grpc::ByteBuffer message) {
    outgoing_ = std::move(message);
    StartWrite(&outgoing_);
  }

 private:
  void OnReadDone(bool ok) override { owner_->OnPeerRead(ok); }
  void OnWriteDone(bool ok) override { owner_->OnPeerWritten(ok); }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Owner> owner = std::move(owner_);
    owner->OnPeerDone(status);
  }

  grpc::ClientContext context_;
  std::shared_ptr<Owner> owner_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  bool held_ = false;
};

}  // namespace kvbridge::server
