#include "core/ucx/status.h"

#include "absl/strings/str_cat.h"

namespace kvbridge::ucx {

absl::Status FromUcs(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", ucs_status_string(status));
  switch (status) {
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_NO_DEVICE:
      return absl::InvalidArgumentError(text);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return absl::ResourceExhaustedError(text);
    default:  // UCS_ERR_CANCELED too: what a broken connection had under way ends with it
      return absl::UnavailableError(text);
  }
}

}  // namespace kvbridge::ucx
