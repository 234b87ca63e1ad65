// Other kvbridged that caches may be sent to, and the UCX node over which they travel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/ucx/node.h"
#include "grpcpp/channel.h"
#include "kvbridge/v1/config.pb.h"

namespace kvbridge::server {

// One of the configuration's `peers`.
struct Peer {
  std::string name;
  std::shared_ptr<grpc::Channel> channel;
  std::string token_file;  // of the bearer token; empty = none
  bool knows_us = false;   // it tells our tenant by token or certificate, and trusts no statement
};

// Thread contract: every method may be called from any thread.
class Peers {
 public:
  // Of a validated configuration. Connects to nobody yet. UNIMPLEMENTED for ucx.listen in a build
  // without UCX; UNAVAILABLE for an address that can't be bound.
  static absl::StatusOr<std::unique_ptr<Peers>> Create(const v1::Config& config);

  // Null when there is none of that name.
  const Peer* Find(absl::string_view name) const;
  std::vector<std::string> names() const;

  // Null: bytes come and go in the gRPC stream.
  ucx::Node* node() const { return node_.get(); }
  // Where peers push to, as TransferAccepted.remote tells it; empty when this kvbridged only sends.
  std::string push_address() const;
  // Whether frames may be sent, unencrypted, to the address that a peer names: one of this host
  // only where that peer is on it.
  bool MayPush(absl::string_view address, bool peer_is_local) const;

  // Relayed transfers in flight: each holds what Enter() answers until it is decided.
  std::shared_ptr<const void> Enter() const { return in_flight_; }
  int64_t inflight_transfers() const { return in_flight_.use_count() - 1; }

  int frames_in_flight() const { return config_.frames_in_flight(); }
  absl::Duration timeout() const;

 private:
  explicit Peers(const v1::UcxConfig& config) : config_(config) {}

  const v1::UcxConfig config_;
  std::vector<Peer> peers_;
  std::unique_ptr<ucx::Node> node_;
  const std::shared_ptr<const int> in_flight_ =
      std::make_shared<const int>();  // counts its holders
};

}  // namespace kvbridge::server
