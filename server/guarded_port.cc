#include "server/guarded_port.h"

#include <vector>

#include "server/grpc_status.h"

namespace kvbridge::server {
namespace {

constexpr char kTenantProperty[] = "kvbridge_tenant";

absl::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// Of a certificate that the handshake has verified.
std::vector<absl::string_view> CertificateNames(const grpc_auth_context* peer) {
  std::vector<absl::string_view> names;
  if (grpc_auth_context_peer_is_authenticated(peer) == 0) return names;
  auto properties = grpc_auth_context_find_properties_by_name(peer, GRPC_X509_SAN_PROPERTY_NAME);
  while (const auto* property = grpc_auth_property_iterator_next(&properties)) {
    names.emplace_back(property->value, property->value_length);
  }
  return names;
}

void Process(void* state, grpc_auth_context* peer, const grpc_metadata* metadata, size_t count,
             grpc_process_auth_metadata_done_cb done, void* user_data) {
  absl::string_view path;
  const grpc_metadata* header = nullptr;
  for (const grpc_metadata* each = metadata; each != metadata + count; ++each) {
    if (View(each->key) == ":path") path = View(each->value);
    if (View(each->key) == "authorization") header = each;
  }
  Credentials shown{.authorization = std::nullopt, .names = CertificateNames(peer)};
  if (header != nullptr) shown.authorization = View(header->value);
  const auto tenant = static_cast<const Authorizer*>(state)->Authorize(path, shown);
  if (tenant.ok() && tenant->has_value()) {
    grpc_auth_context_add_property(peer, kTenantProperty, (*tenant)->data(), (*tenant)->size());
  }
  const grpc::Status status = ToGrpc(tenant.status());
  // What it was let in by is nobody's business from here on.
  done(user_data, header, header == nullptr ? 0 : 1, nullptr, 0,
       static_cast<grpc_status_code>(status.error_code()), status.error_message().c_str());
}

class Port final : public grpc::ServerCredentials {
 public:
  Port(grpc_server_credentials* credentials, const Authorizer* authorizer)
      : credentials_(credentials) {
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_,
        {.process = &Process, .destroy = nullptr, .state = const_cast<Authorizer*>(authorizer)});
  }
  ~Port() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> GuardedPort(grpc_server_credentials* credentials,
                                                     const Authorizer* authorizer) {
  return std::make_shared<Port>(credentials, authorizer);
}

std::optional<std::string> GrantedTenant(const grpc::ServerContextBase& context) {
  const auto peer = context.auth_context();
  if (peer == nullptr) return std::nullopt;
  const auto tenants = peer->FindPropertyValues(kTenantProperty);
  if (tenants.empty()) return std::nullopt;
  return std::string(tenants[0].data(), tenants[0].size());
}

}  // namespace kvbridge::server
