// Turns OpenSSL's per-thread error queue into an absl::Status.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvbridge::crypto {

// INTERNAL naming the failed `operation` and every queued reason. The queue is left empty, so that
// a later call on this thread cannot report an old error.
absl::Status DrainOpenSslErrors(absl::string_view operation);

}  // namespace kvbridge::crypto
