#include "core/crypto/token.h"

#include <climits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "core/crypto/openssl_status.h"

namespace kvbridge::crypto {

absl::StatusOr<std::string> RandomHex(size_t bytes) {
  if (bytes > INT_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("random bytes: expected at most ", INT_MAX, ", got ", bytes));
  }
  std::string raw(bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(raw.data()), static_cast<int>(bytes)) != 1) {
    return DrainOpenSslErrors("random bytes");
  }
  return absl::BytesToHexString(raw);
}

bool ConstantTimeEquals(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvbridge::crypto
