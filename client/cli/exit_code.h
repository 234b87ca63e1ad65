// What the process ends with. Documented in `kvbridge --help`; scripts rely on the numbers.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvbridge::cli {

enum class ExitCode : int {
  kOk = 0,
  kGateFailed = 1,    // it ran, but a gate failed: a fallback with --fail-on-fallback, not ready
  kUsage = 2,         // the command line
  kBadInput = 3,      // a file or request that is malformed, missing or damaged
  kIncompatible = 4,  // the pair of models can't be served
  kUnreachable = 5,   // no server, or it did not answer in time
  kResources = 6,     // it would not fit
  kInterrupted = 130,
};

ExitCode ExitCodeFor(const absl::Status& status);

// Of a transfer that was not applied. Policy, quality and capacity are answers, not errors: OK
// unless the caller asked to fail. `refused`: the server does not let this caller in.
ExitCode ExitCodeForFallback(absl::string_view outcome, absl::string_view reason, bool refused,
                             bool fail_on_fallback);

}  // namespace kvbridge::cli
