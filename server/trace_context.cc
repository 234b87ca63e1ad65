#include "server/trace_context.h"

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

#include "core/crypto/token.h"

namespace kvbridge::server {
namespace {

// version "-" trace id "-" parent id "-" flags, lower-case hexadecimal.
constexpr absl::string_view kShape = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
constexpr size_t kTraceBegin = 3, kTraceSize = 32;
constexpr size_t kParentBegin = 36, kSpanSize = 16;
constexpr size_t kFlagsBegin = 53, kFlagsSize = 2;
// The least that everybody has to pass on; more is dropped whole.
constexpr size_t kMaxState = 512;

bool AllZero(absl::string_view digits) {
  return digits.find_first_not_of('0') == absl::string_view::npos;
}

// Later versions may add to the end.
bool WellFormed(absl::string_view parent) {
  if (parent.size() < kShape.size() || parent.substr(0, 2) == "ff") return false;
  if (parent.size() > kShape.size() &&
      (parent.substr(0, 2) == "00" || parent[kShape.size()] != '-')) {
    return false;
  }
  for (size_t i = 0; i < kShape.size(); ++i) {
    const char c = parent[i];
    const bool hex = absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
    if (kShape[i] == '-' ? c != '-' : !hex) return false;
  }
  return !AllZero(parent.substr(kTraceBegin, kTraceSize)) &&
         !AllZero(parent.substr(kParentBegin, kSpanSize));
}

// Empty unless the call has exactly one.
absl::string_view Only(const Metadata& metadata, const char* key) {
  if (metadata.count(key) != 1) return "";
  const grpc::string_ref value = metadata.find(key)->second;
  return {value.data(), value.size()};
}

}  // namespace

TraceContext ContinueTrace(const Metadata& metadata) {
  const absl::string_view parent = Only(metadata, "traceparent");
  if (!WellFormed(parent)) return {};
  auto span = crypto::RandomHex(kSpanSize / 2);
  if (!span.ok() || AllZero(*span)) return {};
  const absl::string_view state = Only(metadata, "tracestate");
  return {.trace_id = std::string(parent.substr(kTraceBegin, kTraceSize)),
          .span_id = *std::move(span),
          .flags = std::string(parent.substr(kFlagsBegin, kFlagsSize)),
          .state = std::string(state.size() <= kMaxState ? state : "")};
}

}  // namespace kvbridge::server
