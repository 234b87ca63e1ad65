// W3C Trace Context: whose trace a call belongs to, and this server's own span in it.
#pragma once

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

#include "grpcpp/support/string_ref.h"

namespace kvbridge::server {

// A value. Empty when the caller is not traced: no trace is ever begun here.
struct TraceContext {
  std::string trace_id;  // 32 hexadecimal digits
  std::string span_id;   // 16, of the work done here
  std::string flags;     // 2
  std::string state;     // tracestate as it came, to be passed on

  bool empty() const { return trace_id.empty(); }
  // For whoever is called from here, and for the caller's answer.
  std::string traceparent() const {
    return absl::StrCat("00-", trace_id, "-", span_id, "-", flags);
  }
};

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// A span of the trace that a call's `traceparent` names; empty unless that is well-formed and comes
// once.
TraceContext ContinueTrace(const Metadata& metadata);

}  // namespace kvbridge::server
