// Transport security of the gRPC listeners: certificates that are read, checked as a whole and
// replaced while the server runs. The one place that knows how gRPC takes them.
//
// gRPC asks at each handshake whether there is something new, so a connection is always made with
// the newest set that passed its checks, connections that stand are left alone, and a set that is
// half written or damaged is never used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <grpc/grpc_security.h>

#include "core/base/mutex.h"
#include "kvbridge/v1/config.pb.h"

namespace kvbridge::server {

// The files of one moment.
struct TlsMaterial {
  std::string chain;  // PEM
  std::string key;
  std::string client_ca;  // empty: clients are asked for no certificate
  absl::Time expires;     // the first of the chain
  std::optional<absl::Time> client_ca_expires;

  friend bool operator==(const TlsMaterial&, const TlsMaterial&) = default;
};

// The files that are named.
std::vector<std::string> TlsFiles(const v1::TlsConfig& config);

// INVALID_ARGUMENT or NOT_FOUND names the setting, the file and what is wrong with it.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const v1::TlsConfig& config);

// One sentence for each certificate that is not valid at `now`.
std::vector<std::string> TlsWarnings(const TlsMaterial& material, absl::Time now);

// Thread contract: every method may be called from any thread. Outlives the gRPC server that uses
// its credentials.
class Tls {
 public:
  // As ReadTlsFiles.
  static absl::StatusOr<std::unique_ptr<Tls>> Create(const v1::TlsConfig& config);
  ~Tls();

  // Reads the files again. True when they hold something new, which later handshakes use; an error
  // changes nothing.
  absl::StatusOr<bool> Reload();

  TlsMaterial material() const;

  // For one listener: each needs its own, which the caller owns. Before the server starts; by one
  // thread.
  grpc_server_credentials* NewCredentials();

 private:
  struct Listener;
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* listener, grpc_ssl_server_certificate_config** config);
  Tls(const v1::TlsConfig& config, TlsMaterial material);

  const v1::TlsConfig config_;
  mutable base::Mutex mutex_;
  TlsMaterial material_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> generation_{1};
  std::vector<std::unique_ptr<Listener>> listeners_;  // gRPC asks them as long as it runs
};

}  // namespace kvbridge::server
