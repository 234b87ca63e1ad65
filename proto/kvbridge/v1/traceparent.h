// W3C Trace Context's `traceparent`: whose trace a call belongs to, as every side of the wire reads
// it.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kvbridge::wire {

struct Traceparent {
  std::string trace_id;  // 32 hexadecimal digits
  std::string span_id;   // 16, of whoever calls
  std::string flags;     // 2

  std::string ToString() const;
};

// Nothing unless it is well-formed. Of later versions, what this one knows of them.
// Thread contract: a pure function.
std::optional<Traceparent> ParseTraceparent(absl::string_view text);

}  // namespace kvbridge::wire
