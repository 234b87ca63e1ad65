// The connections of one client. One TCP connection moves less than a machine can, so a host gets
// several, each with its own subchannel pool; a unix socket needs one.
//
// Thread contract: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace grpc {
class Channel;
}

namespace kvbridge::client {

// Transport security; all PEM.
struct TlsOptions {
  std::string server_ca;    // authorities of the server's certificate; empty = the host's
  std::string client_cert;  // chain, with client_key: for servers that ask for one
  std::string client_key;
  std::string server_name;  // in its certificate, where it is not the target's
};

// Whether a target names a unix socket or a loopback address.
bool IsSameHost(absl::string_view target);

class Channels {
 public:
  struct Options {
    std::string target;  // "host:port" or "unix:/path.sock"
    int count = 2;       // 1 to 64; a unix socket has one whatever this says
    absl::Duration connect_timeout = absl::Seconds(2);
    std::optional<TlsOptions> tls;  // none = plaintext
    // Asked for at each call; to another host by TLS only. One that is not printable ASCII is not
    // sent: the server then says that there was none.
    std::function<std::string()> token;
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
