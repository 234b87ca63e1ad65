// ucs_status_t as absl::Status: the one place that knows both.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include <ucs/type/status.h>

namespace kvbridge::ucx {

// "<what>: <UCX's words>". OK stays OK.
absl::Status FromUcs(ucs_status_t status, absl::string_view what);

}  // namespace kvbridge::ucx
