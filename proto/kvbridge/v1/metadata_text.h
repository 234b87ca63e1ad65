// What may be the value of a call's metadata.
#pragma once

#include "absl/strings/string_view.h"

namespace kvbridge::wire {

// Printable ASCII. gRPC aborts the process that adds anything else, although it hands on whatever
// another implementation sent. Thread contract: a pure function.
bool IsMetadataText(absl::string_view text);

}  // namespace kvbridge::wire
