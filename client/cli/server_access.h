// The one way in which commands reach a server: by address, with what it takes to be let in.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cpp/client.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvbridge::cli {

struct ServerAccess {
  std::string address;    // "host:port" or "unix:/path.sock"; empty = none was named
  std::string ca_file;    // authorities of the server, PEM; empty = plaintext
  std::string cert_file;  // what this command shows it, PEM
  std::string key_file;
  std::string server_name;  // in its certificate, where it is not the address's
  std::string token_file;   // holds a bearer token, and nothing else
  std::optional<double> timeout_seconds;

  // The longest wait for one answer: what was asked for, or else this.
  absl::Duration Timeout(absl::Duration otherwise = client::Client::kDefaultTimeout) const;
};

// Adds --server and what goes with it; answers --server. `access` outlives `app`.
CLI::Option* AddServerFlags(CLI::App* app, ServerAccess& access);

// Connects when first used. An error names the flag.
absl::StatusOr<std::unique_ptr<client::Client>> Connect(const ServerAccess& access);

}  // namespace kvbridge::cli
