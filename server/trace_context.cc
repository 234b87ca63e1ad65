#include "server/trace_context.h"

#include <optional>
#include <utility>

#include "absl/strings/string_view.h"

#include "core/crypto/token.h"
#include "proto/kvbridge/v1/traceparent.h"

namespace kvbridge::server {
namespace {

constexpr size_t kSpanBytes = 8;

// Empty unless the call has exactly one.
absl::string_view Only(const Metadata& metadata, const char* key) {
  if (metadata.count(key) != 1) return "";
  const grpc::string_ref value = metadata.find(key)->second;
  return {value.data(), value.size()};
}

}  // namespace

TraceContext ContinueTrace(const Metadata& metadata) {
  std::optional<wire::Traceparent> parent = wire::ParseTraceparent(Only(metadata, "traceparent"));
  if (!parent.has_value()) return {};
  auto span = crypto::RandomHex(kSpanBytes);
  if (!span.ok() || span->find_first_not_of('0') == std::string::npos) return {};
  const absl::string_view state = Only(metadata, "tracestate");
  return {.trace_id = std::move(parent->trace_id),
          .span_id = *std::move(span),
          .flags = std::move(parent->flags),
          .state = std::string(wire::IsTracestate(state) ? state : "")};
}

}  // namespace kvbridge::server
