// X.509 certificates and private keys in PEM, checked before a TLS library sees them, so that what
// is wrong can be said in a person's words.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvbridge::crypto {

// Certificates that stand in one file.
struct CertificateBundle {
  int count = 0;
  absl::Time valid_from;   // the latest beginning
  absl::Time valid_until;  // the earliest end

  friend bool operator==(const CertificateBundle&, const CertificateBundle&) = default;
};

// INVALID_ARGUMENT says what was expected: at least one certificate, each of them readable.
absl::StatusOr<CertificateBundle> ReadCertificates(absl::string_view pem);

// INVALID_ARGUMENT when `key_pem` is no unencrypted private key, or not that of the first
// certificate of `chain_pem`. The message never holds any of it.
absl::Status CheckPrivateKey(absl::string_view chain_pem, absl::string_view key_pem);

}  // namespace kvbridge::crypto
