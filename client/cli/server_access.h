// How operators' commands reach a server: by address, with what it takes to be let in.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

namespace kvbridge::cli {

struct ServerAccess {
  std::string server;     // "host:port" or "unix:/path.sock"
  std::string ca_file;    // authorities of the server, PEM; empty = plaintext
  std::string cert_file;  // what this command shows it, PEM
  std::string key_file;
  std::string token_file;  // holds a bearer token, and nothing else
};

// Thread contract: immutable.
class Connection {
 public:
  // INVALID_ARGUMENT or NOT_FOUND names the file. Connects when first used.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ServerAccess& access);

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Of one call.
  std::unique_ptr<grpc::ClientContext> Context(absl::Duration timeout = absl::Seconds(30)) const;

 private:
  Connection(std::shared_ptr<grpc::Channel> channel, std::string token)
      : channel_(std::move(channel)), token_(std::move(token)) {}

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string token_;
};

}  // namespace kvbridge::cli
