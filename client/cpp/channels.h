// The connections of one client. One TCP connection moves less than a machine can, so a host gets
// several, each with its own subchannel pool; a unix socket needs one. Plaintext: transport
// security comes with the server's.
//
// Thread contract: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Channel;
}

namespace kvbridge::client {

class Channels {
 public:
  struct Options {
    std::string target;  // "host:port" or "unix:/path.sock"
    int count = 2;       // 1 to 64; a unix socket has one whatever this says
    absl::Duration connect_timeout = absl::Seconds(2);
  };
  // INVALID_ARGUMENT names the option. Connects when first used.
  static absl::StatusOr<std::unique_ptr<Channels>> Create(const Options& options);

  // The channels in turn.
  const std::shared_ptr<grpc::Channel>& Next() {
    return channels_[next_.fetch_add(1, std::memory_order_relaxed) % channels_.size()];
  }

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::atomic<uint32_t> next_{0};
};

}  // namespace kvbridge::client
