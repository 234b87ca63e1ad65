#include "server/peer_call.h"

#include "grpcpp/generic/generic_stub.h"

namespace kvbridge::server {

void PeerCall::Start(const std::shared_ptr<grpc::Channel>& channel, std::shared_ptr<Owner> owner) {
  owner_ = std::move(owner);
  grpc::GenericStub stub(channel);
  stub.PrepareBidiStreamingCall(&context_, "/kvbridge.v1.KvBridge/Transfer", {}, this);
  held_ = true;
  AddHold();
  StartCall();
}

}  // namespace kvbridge::server
