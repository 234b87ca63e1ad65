// The words of vllm-project/semantic-router's KV transfer (pull 3770): what its proxies read and
// write in HTTP headers, mapped to and from this protocol's outcomes.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "kvbridge/v1/types.pb.h"

namespace kvbridge::client {

// Of the request.
inline constexpr absl::string_view kSourcePodHeader = "x-vsr-kv-source-pod";
inline constexpr absl::string_view kCacheIdHeader = "x-vsr-kv-cache-id";
inline constexpr absl::string_view kMapperIdHeader = "x-vsr-kv-mapper-id";
// Of the answer.
inline constexpr absl::string_view kTransferStatusHeader = "x-vsr-kv-transfer-status";

// "applied", "fallback_reprefill" or "unsupported": the value of kTransferStatusHeader. "" for
// OUTCOME_UNSPECIFIED, which no transfer ends with.
absl::string_view ToRouterStatus(v1::Outcome outcome);
// INVALID_ARGUMENT for any other word.
absl::StatusOr<v1::Outcome> ParseRouterStatus(absl::string_view word);

}  // namespace kvbridge::client
