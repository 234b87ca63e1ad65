#include "core/crypto/certificate.h"

#include <algorithm>
#include <ctime>
#include <memory>

#include "absl/strings/str_cat.h"
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

namespace kvbridge::crypto {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using BioPtr = std::unique_ptr<BIO, Free>;
using CertificatePtr = std::unique_ptr<X509, Free>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Free>;

absl::Status Wrong(absl::string_view expected, absl::string_view got) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("expected ", expected, ", got ", got));
}

BioPtr Open(absl::string_view pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// A server has nobody to ask for a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

CertificatePtr Next(BIO* bio) {
  return CertificatePtr(PEM_read_bio_X509(bio, nullptr, NoPassphrase, nullptr));
}

// Whether the queue's last error only says that no further PEM block begins.
bool AtEnd() { return ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE; }

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

}  // namespace

absl::StatusOr<CertificateBundle> ReadCertificates(absl::string_view pem) {
  const BioPtr bio = Open(pem);
  CertificateBundle bundle{.valid_from = absl::InfinitePast(),
                           .valid_until = absl::InfiniteFuture()};
  while (const CertificatePtr certificate = Next(bio.get())) {
    ++bundle.count;
    bundle.valid_from = std::max(bundle.valid_from, ToTime(X509_get0_notBefore(certificate.get())));
    bundle.valid_until =
        std::min(bundle.valid_until, ToTime(X509_get0_notAfter(certificate.get())));
  }
  if (!AtEnd()) {
    return Wrong("PEM certificates", absl::StrCat("damaged bytes after ", bundle.count));
  }
  ERR_clear_error();
  if (bundle.count == 0) return Wrong("PEM certificates", "none");
  return bundle;
}

absl::Status CheckPrivateKey(absl::string_view chain_pem, absl::string_view key_pem) {
  const CertificatePtr leaf = Next(Open(chain_pem).get());
  if (leaf == nullptr) return Wrong("the certificate of a private key", "none");
  const KeyPtr key(PEM_read_bio_PrivateKey(Open(key_pem).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) {
    return Wrong(
        "an unencrypted private key in PEM",
        key_pem.find("ENCRYPTED") == absl::string_view::npos ? "none" : "an encrypted one");
  }
  if (X509_check_private_key(leaf.get(), key.get()) != 1) {
    return Wrong("the private key of the first certificate", "another");
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::crypto
