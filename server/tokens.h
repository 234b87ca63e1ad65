// The file of bearer tokens: one `token tenant groups` per line, groups separated by commas; empty
// lines and what follows a `#` at the start of a word are ignored.
//
//   # token                            tenant  groups
//   3f8a62b5c0d94e7f8a1b2c3d4e5f6071   router  transfer,plan,memory
#pragma once

#include <bitset>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/crypto/sha256.h"
#include "server/method_group.h"

namespace kvbridge::server {

using MethodGroups = std::bitset<kMethodGroupNames.size()>;

// What one token gives. The token itself is not kept.
struct TokenGrant {
  crypto::Digest digest{};  // SHA-256 of the token
  std::string tenant;
  MethodGroups groups;
};

inline constexpr size_t kMinTokenLength = 16;
inline constexpr size_t kMaxTokens = 4096;

// INVALID_ARGUMENT names the line, never what stands there.
absl::StatusOr<std::vector<TokenGrant>> ParseTokens(absl::string_view text);

}  // namespace kvbridge::server
