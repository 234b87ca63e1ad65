#include "proto/kvbridge/v1/traceparent.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "proto/kvbridge/v1/metadata_text.h"

namespace kvbridge::wire {
namespace {

// version "-" trace id "-" span id "-" flags, lower-case hexadecimal.
constexpr absl::string_view kShape = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
constexpr size_t kTraceBegin = 3, kTraceSize = 32;
constexpr size_t kSpanBegin = 36, kSpanSize = 16;
constexpr size_t kFlagsBegin = 53, kFlagsSize = 2;

bool AllZero(absl::string_view digits) {
  return digits.find_first_not_of('0') == absl::string_view::npos;
}

constexpr size_t kMostSize = 256;

// Later versions may add to the end.
bool WellFormed(absl::string_view text) {
  if (text.size() < kShape.size() || text.substr(0, 2) == "ff") return false;
  if (text.size() > kMostSize || !IsMetadataText(text)) return false;
  if (text.size() > kShape.size() && (text.substr(0, 2) == "00" || text[kShape.size()] != '-')) {
    return false;
  }
  for (size_t i = 0; i < kShape.size(); ++i) {
    const char c = text[i];
    const bool hex = absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
    if (kShape[i] == '-' ? c != '-' : !hex) return false;
  }
  return !AllZero(text.substr(kTraceBegin, kTraceSize)) &&
         !AllZero(text.substr(kSpanBegin, kSpanSize));
}

}  // namespace

std::string Traceparent::ToString() const {
  return absl::StrCat("00-", trace_id, "-", span_id, "-", flags);
}

std::optional<Traceparent> ParseTraceparent(absl::string_view text) {
  if (!WellFormed(text)) return std::nullopt;
  return Traceparent{.trace_id = std::string(text.substr(kTraceBegin, kTraceSize)),
                     .span_id = std::string(text.substr(kSpanBegin, kSpanSize)),
                     .flags = std::string(text.substr(kFlagsBegin, kFlagsSize))};
}

bool IsTracestate(absl::string_view text) {
  return text.size() <= kMaxTracestate && IsMetadataText(text);
}

}  // namespace kvbridge::wire
