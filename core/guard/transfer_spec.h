// One transfer as its caller states it, apart from the bytes. Nothing here has been checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "core/model/model_spec.h"

namespace kvbridge::guard {

// Whether the source's keys are rotated as they lie. Never guessed.
enum class KeyState : uint8_t { kUnspecified, kRoped, kUnroped };

// What a mapped value beyond the target dtype's range does.
enum class OverflowPolicy : uint8_t {
  kFail,      // the transfer falls back with magnitude_bound
  kSaturate,  // clamped to the largest finite value, and counted
};

struct TransferSpec {
  std::string request_id;  // 1 to 128 printable ASCII characters
  std::string tenant;      // empty is a tenant of its own
  std::string route;       // as the decision will name it

  model::ModelSpec source;  // as the engine that holds the cache states it
  model::ModelSpec target;  // its dtype is the answer's

  int64_t tokens = 0;                  // of the selection, padding included
  int64_t position_start = 0;          // used when position_list is empty
  std::vector<int64_t> position_list;  // [tokens], see kv::Positions
  KeyState key_state = KeyState::kUnspecified;
  std::string token_ids_sha256;  // echoed in the decision

  // Length N of the prompt the target goes on from, padding included; 0 = tokens.
  int64_t prompt_tokens = 0;
  int32_t hops = 0;  // maps the source cache has been through already

  // Target tokens [0, first_token) were mapped before and are left alone; then artifact_digest
  // names the artifact that did it. Empty = any.
  int64_t first_token = 0;
  std::string artifact_digest;

  std::optional<absl::Duration> max_latency;     // none: the route's; zero falls back at once
  absl::Time deadline = absl::InfiniteFuture();  // of the call
  int64_t max_covered_tokens = 0;                // 0 = no limit
  int32_t native_tail = 1;                       // values below 1 mean 1
  OverflowPolicy overflow = OverflowPolicy::kFail;

  // Whether the plane keeps source (target) tiles in buffers of this process: admission charges
  // them.
  bool source_buffered = true;
  bool target_buffered = true;
};

}  // namespace kvbridge::guard
