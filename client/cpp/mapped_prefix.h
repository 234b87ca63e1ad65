// What a target cache already holds, so that a conversation's next turn maps its new tokens only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvbridge::client {

// How many tokens two histories share from their start.
inline int64_t LongestCommonPrefix(std::span<const int32_t> one, std::span<const int32_t> other) {
  return std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first - one.begin();
}

// Tokens of a target cache from its start: mapped, then perhaps followed by the target's own. One
// artifact made what is mapped of it; what another one makes can't be appended. Keep it beside the
// cache; it is worth nothing once those tokens have been overwritten.
struct MappedPrefix {
  std::vector<int32_t> token_ids;  // one per token that is there
  std::string artifact_digest;     // the decision's
  std::string salt;
  int32_t hops = 0;
};

}  // namespace kvbridge::client
