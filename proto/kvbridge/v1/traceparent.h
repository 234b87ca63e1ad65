// W3C Trace Context's `traceparent`: whose trace a call belongs to, as every side of the wire reads
// it. Thread contract: pure functions.
#pragma once

#include <cstddef>
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
std::optional<Traceparent> ParseTraceparent(absl::string_view text);

// Of its companion `tracestate`: the least that everybody has to pass on; more is dropped whole.
inline constexpr size_t kMaxTracestate = 512;
// Whether that can be sent: not more, and what metadata may hold (metadata_text.h).
bool IsTracestate(absl::string_view text);

}  // namespace kvbridge::wire
