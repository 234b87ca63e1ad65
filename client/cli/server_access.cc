#include "client/cli/server_access.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace kvbridge::cli {
namespace {

absl::StatusOr<std::string> Read(const char* flag, const std::string& path) {
  if (path.empty()) return std::string();
  auto text = base::ReadFile(path, base::kMiB);
  if (text.ok()) return text;
  return absl::Status(text.status().code(),
                      absl::StrCat(flag, ": ", path, ": ", text.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ServerAccess& access) {
  grpc::SslCredentialsOptions tls;
  KVB_ASSIGN_OR_RETURN(tls.pem_root_certs, Read("--ca-file", access.ca_file));
  KVB_ASSIGN_OR_RETURN(tls.pem_cert_chain, Read("--cert-file", access.cert_file));
  KVB_ASSIGN_OR_RETURN(tls.pem_private_key, Read("--key-file", access.key_file));
  KVB_ASSIGN_OR_RETURN(std::string token, Read("--token-file", access.token_file));
  absl::StripAsciiWhitespace(&token);
  auto credentials =
      access.ca_file.empty() ? grpc::InsecureChannelCredentials() : grpc::SslCredentials(tls);
  return std::unique_ptr<Connection>(
      new Connection(grpc::CreateChannel(access.server, credentials), std::move(token)));
}

std::unique_ptr<grpc::ClientContext> Connection::Context(absl::Duration timeout) const {
  auto context = std::make_unique<grpc::ClientContext>();
  if (timeout != absl::InfiniteDuration()) {
    context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }
  if (!token_.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", token_));
  return context;
}

}  // namespace kvbridge::cli
