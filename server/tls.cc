#include "server/tls.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/crypto/certificate.h"

namespace kvbridge::server {
namespace {

constexpr uint64_t kMaxPemBytes = base::kMiB;

absl::Status InFile(const absl::Status& status, absl::string_view setting,
                    const std::string& path) {
  return absl::Status(status.code(),
                      absl::StrCat("listen.tls.", setting, ": ", path, ": ", status.message()));
}

absl::StatusOr<std::string> ReadPem(absl::string_view setting, const std::string& path) {
  auto text = base::ReadFile(path, kMaxPemBytes);
  if (!text.ok()) return InFile(text.status(), setting, path);
  return text;
}

absl::StatusOr<crypto::CertificateBundle> Certificates(absl::string_view setting,
                                                       const std::string& path,
                                                       absl::string_view pem) {
  auto bundle = crypto::ReadCertificates(pem);
  if (!bundle.ok()) return InFile(bundle.status(), setting, path);
  return bundle;
}

void WarnUnlessValid(absl::string_view setting, absl::Time until, absl::Time now,
                     std::vector<std::string>* warnings) {
  if (now < until) return;
  warnings->push_back(absl::StrCat("listen.tls.", setting, ": a certificate expired at ",
                                   absl::FormatTime(until, absl::UTCTimeZone())));
}

grpc_ssl_server_certificate_config* ToGrpcConfig(const TlsMaterial& material) {
  const grpc_ssl_pem_key_cert_pair pair{material.key.c_str(), material.chain.c_str()};
  // gRPC wants authorities even where it asks no client for a certificate.
  const std::string& authorities = material.client_ca.empty() ? material.chain : material.client_ca;
  return grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
}

grpc_ssl_client_certificate_request_type ClientCertificates(const v1::TlsConfig& config) {
  if (config.client_ca_file().empty()) return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  const bool required = !config.has_require_client_cert() || config.require_client_cert();
  return required ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                  : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
}

}  // namespace

std::vector<std::string> TlsFiles(const v1::TlsConfig& config) {
  std::vector<std::string> files;
  for (const std::string* file :
       {&config.cert_file(), &config.key_file(), &config.client_ca_file()}) {
    if (!file->empty()) files.push_back(*file);
  }
  return files;
}

absl::StatusOr<TlsMaterial> ReadTlsFiles(const v1::TlsConfig& config) {
  TlsMaterial material;
  KVB_ASSIGN_OR_RETURN(material.chain, ReadPem("cert_file", config.cert_file()));
  KVB_ASSIGN_OR_RETURN(material.key, ReadPem("key_file", config.key_file()));
  KVB_ASSIGN_OR_RETURN(const crypto::CertificateBundle chain,
                       Certificates("cert_file", config.cert_file(), material.chain));
  material.expires = chain.valid_until;
  const absl::Status key = crypto::CheckPrivateKey(material.chain, material.key);
  if (!key.ok()) return InFile(key, "key_file", config.key_file());
  if (config.client_ca_file().empty()) return material;
  KVB_ASSIGN_OR_RETURN(material.client_ca, ReadPem("client_ca_file", config.client_ca_file()));
  KVB_ASSIGN_OR_RETURN(const crypto::CertificateBundle ca,
                       Certificates("client_ca_file", config.client_ca_file(), material.client_ca));
  material.client_ca_expires = ca.valid_until;
  return material;
}

std::vector<std::string> TlsWarnings(const TlsMaterial& material, absl::Time now) {
  std::vector<std::string> warnings;
  WarnUnlessValid("cert_file", material.expires, now, &warnings);
  if (material.client_ca_expires.has_value()) {
    WarnUnlessValid("client_ca_file", *material.client_ca_expires, now, &warnings);
  }
  return warnings;
}

// Which generation a listener has been given.
struct Tls::Listener {
  const Tls* tls;
  std::atomic<uint64_t> seen{0};
};

Tls::Tls(const v1::TlsConfig& config, TlsMaterial material)
    : config_(config), material_(std::move(material)) {}
Tls::~Tls() = default;

absl::StatusOr<std::unique_ptr<Tls>> Tls::Create(const v1::TlsConfig& config) {
  KVB_ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsFiles(config));
  return std::unique_ptr<Tls>(new Tls(config, std::move(material)));
}

absl::StatusOr<bool> Tls::Reload() {
  KVB_ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsFiles(config_));
  base::MutexLock lock(&mutex_);
  if (material == material_) return false;
  material_ = std::move(material);
  generation_.fetch_add(1);
  return true;
}

TlsMaterial Tls::material() const {
  base::MutexLock lock(&mutex_);
  return material_;
}

grpc_ssl_certificate_config_reload_status Tls::Fetch(void* self,
                                                     grpc_ssl_server_certificate_config** config) {
  auto* listener = static_cast<Listener*>(self);
  const uint64_t newest = listener->tls->generation_.load();
  if (listener->seen.exchange(newest) == newest) {
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  }
  *config = ToGrpcConfig(listener->tls->material());
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

grpc_server_credentials* Tls::NewCredentials() {
  Listener* listener = listeners_.emplace_back(new Listener{this}).get();
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(ClientCertificates(config_),
                                                                      &Tls::Fetch, listener));
}

}  // namespace kvbridge::server
