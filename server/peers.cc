#include "server/peers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "proto/kvbridge/v1/chunk_codec.h"
#include "server/address.h"
#include "server/convert.h"

namespace kvbridge::server {
namespace {

constexpr unsigned kCertificateRefreshSeconds = 10;
constexpr int kKeepaliveMs = 5000;  // a link that is down is noticed after twice this long

std::shared_ptr<grpc::ChannelCredentials> CredentialsFor(const v1::PeerConfig& peer) {
  if (peer.ca_file().empty()) return grpc::InsecureChannelCredentials();
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  if (peer.cert_file().empty()) {
    options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
        peer.ca_file(), kCertificateRefreshSeconds));
  } else {
    options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
        peer.key_file(), peer.cert_file(), peer.ca_file(), kCertificateRefreshSeconds));
    options.watch_identity_key_cert_pairs();
  }
  options.watch_root_certs();
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::Channel> ChannelTo(const v1::PeerConfig& peer) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, wire::kReadBytes);
  // gRPC would wait up to two minutes before it looks again at a peer that was away.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // also bounds one attempt
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(peer.address(), CredentialsFor(peer), args);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Peers>> Peers::Create(const v1::Config& config) {
  std::unique_ptr<Peers> peers(new Peers(config.ucx()));
  for (const v1::PeerConfig& peer : config.peers()) {
    const bool knows_us = !peer.token_file().empty() || !peer.cert_file().empty();
    peers->peers_.push_back({peer.name(), ChannelTo(peer), peer.token_file(), knows_us});
  }
  const bool listens = !config.ucx().listen().empty();
  if (!listens && peers->peers_.empty()) return peers;
  auto node = ucx::MakeNode({.listen = config.ucx().listen(),
                             .transports = config.ucx().transports(),
                             .timeout = peers->timeout(),
                             .max_connections = config.limits().max_inflight_transfers()});
  if (node.ok()) {
    peers->node_ = *std::move(node);
  } else if (listens || !absl::IsUnimplemented(node.status())) {
    return node.status();
  }
  return peers;
}

const Peer* Peers::Find(absl::string_view name) const {
  const auto peer = std::find_if(peers_.begin(), peers_.end(),
                                 [name](const Peer& candidate) { return candidate.name == name; });
  return peer == peers_.end() ? nullptr : &*peer;
}

std::vector<std::string> Peers::names() const {
  std::vector<std::string> names;
  for (const Peer& peer : peers_) names.push_back(peer.name);
  return names;
}

std::string Peers::push_address() const {
  if (node_ == nullptr || node_->address().empty()) return "";
  const auto address = Address::Parse(node_->address());
  const bool any = address.ok() && (address->host == "0.0.0.0" || address->host == "::");
  return any ? absl::StrCat(":", address->port) : node_->address();
}

bool Peers::MayPush(absl::string_view address, bool peer_is_local) const {
  const auto parsed = Address::Parse(address);
  if (!parsed.ok() || parsed->is_unix()) return false;
  return parsed->is_local() ? peer_is_local : config_.allow_plaintext_off_host();
}

absl::Duration Peers::timeout() const { return ToDuration(config_.timeout()); }

}  // namespace kvbridge::server
