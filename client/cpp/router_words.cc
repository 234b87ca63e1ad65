#include "client/cpp/router_words.h"

#include "absl/strings/str_cat.h"

namespace kvbridge::client {

absl::string_view ToRouterStatus(v1::Outcome outcome) {
  switch (outcome) {
    case v1::OUTCOME_APPLIED:
      return "applied";
    case v1::OUTCOME_FALLBACK_REPREFILL:
      return "fallback_reprefill";
    case v1::OUTCOME_UNSUPPORTED:
      return "unsupported";
    default:
      return "";
  }
}

absl::StatusOr<v1::Outcome> ParseRouterStatus(absl::string_view word) {
  for (const auto outcome :
       {v1::OUTCOME_APPLIED, v1::OUTCOME_FALLBACK_REPREFILL, v1::OUTCOME_UNSUPPORTED}) {
    if (word == ToRouterStatus(outcome)) return outcome;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kTransferStatusHeader,
                   ": expected applied, fallback_reprefill or unsupported, got \"", word, "\""));
}

}  // namespace kvbridge::client
