#include "client/cli/server_access.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "CLI/CLI.hpp"
#include "client/cli/flag_file.h"
#include "client/cli/number_checks.h"
#include "core/base/status_macros.h"
#include "core/usage/command_tree.h"
#include "proto/kvbridge/v1/metadata_text.h"

namespace kvbridge::cli {
namespace {

absl::StatusOr<client::TlsOptions> ReadTls(const ServerAccess& access) {
  client::TlsOptions tls;
  KVB_ASSIGN_OR_RETURN(tls.server_ca, ReadFlagFile("--ca-file", access.ca_file));
  if (!access.cert_file.empty()) {
    KVB_ASSIGN_OR_RETURN(tls.client_cert, ReadFlagFile("--cert-file", access.cert_file));
    KVB_ASSIGN_OR_RETURN(tls.client_key, ReadFlagFile("--key-file", access.key_file));
  }
  tls.server_name = access.server_name;
  return tls;
}

// As a validator it answers what is wrong. gRPC would look up whatever it is in the DNS.
std::string AddressDefect(const std::string& text) {
  for (const char* scheme : {"unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::StartsWith(text, scheme)) return "";
  }
  const size_t colon = text.rfind(':');
  int port = 0;
  const bool good = colon != std::string::npos && colon > 0 && !absl::StrContains(text, "/") &&
                    absl::SimpleAtoi(text.substr(colon + 1), &port) && port > 0 && port < 65536;
  if (good) return "";
  const bool path = absl::StrContains(text, "/") && !absl::StrContains(text, "://");
  return absl::StrCat("expected host:port or unix:/path.sock, got ",
                      text.empty() ? "nothing" : text,
                      path ? absl::StrCat(" (did you mean unix:", text, "?)") : "");
}

}  // namespace

absl::Duration ServerAccess::Timeout(absl::Duration otherwise) const {
  return timeout_seconds ? absl::Seconds(*timeout_seconds) : otherwise;
}

CLI::Option* AddServerFlags(CLI::App* app, ServerAccess& access) {
  CLI::Option* server =
      app->add_option("--server", access.address, "Address: host:port or unix:/path.sock")
          ->check(&AddressDefect);
  CLI::Option* ca =
      app->add_option("--ca-file", access.ca_file, "Authorities of its certificate: speak TLS")
          ->type_name(usage::kFile)
          ->needs(server);
  CLI::Option* cert = app->add_option("--cert-file", access.cert_file, "Certificate to show it")
                          ->type_name(usage::kFile)
                          ->needs(ca);
  CLI::Option* key = app->add_option("--key-file", access.key_file, "Key of --cert-file")
                         ->type_name(usage::kFile)
                         ->needs(cert);
  cert->needs(key);
  app->add_option("--server-name", access.server_name,
                  "Name in its certificate, where it is not the address's")
      ->needs(ca);
  app->add_option("--token-file", access.token_file, "File with the bearer token to show it")
      ->type_name(usage::kFile)
      ->needs(server);
  app->add_option("--timeout", access.timeout_seconds,
                  "For connecting and for each answer, seconds; default: 10, and 600 for loading")
      ->check(Positive)
      ->needs(server);
  return server;
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect(const ServerAccess& access) {
  client::ClientOptions options;
  options.target = access.address;
  options.connect_timeout = access.Timeout(options.connect_timeout);
  if (access.address.empty()) {
    return absl::InvalidArgumentError("--server: expected an address, got nothing");
  }
  if (!access.ca_file.empty()) {
    KVB_ASSIGN_OR_RETURN(options.tls, ReadTls(access));
  }
  if (!access.token_file.empty()) {
    if (!options.tls.has_value() && !client::IsSameHost(access.address)) {
      return absl::InvalidArgumentError(
          "--token-file: expected --ca-file for a server on another host, got none");
    }
    KVB_ASSIGN_OR_RETURN(std::string token, ReadFlagFile("--token-file", access.token_file));
    absl::StripAsciiWhitespace(&token);
    if (!wire::IsMetadataText(token)) {
      return absl::InvalidArgumentError(absl::StrCat("--token-file: ", access.token_file,
                                                     ": expected one line of printable ASCII"));
    }
    if (token.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--token-file: ", access.token_file, ": expected a token, got nothing"));
    }
    options.token = [token = std::move(token)] { return token; };
  }
  return client::Client::Create(std::move(options));
}

}  // namespace kvbridge::cli
