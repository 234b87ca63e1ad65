#include "core/crypto/openssl_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include <openssl/err.h>

namespace kvbridge::crypto {

absl::Status DrainOpenSslErrors(absl::string_view operation) {
  std::string reasons;
  while (const unsigned long code = ERR_get_error()) {
    char text[256];
    ERR_error_string_n(code, text, sizeof(text));
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", text);
  }
  return absl::InternalError(
      absl::StrCat(operation, " failed: ", reasons.empty() ? "no reason given" : reasons));
}

}  // namespace kvbridge::crypto
