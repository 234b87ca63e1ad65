#include "server/tokens.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "core/base/status_macros.h"

namespace kvbridge::server {
namespace {

absl::Status Wrong(size_t line, absl::string_view expected, size_t got) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", line, ": expected ", expected, ", got ", got));
}

std::vector<absl::string_view> Words(absl::string_view line) {
  std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  for (size_t i = 0; i < words.size(); ++i) {
    if (absl::StartsWith(words[i], "#")) words.resize(i);
  }
  return words;
}

absl::StatusOr<MethodGroups> ParseGroups(size_t line, absl::string_view text) {
  MethodGroups groups;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const auto group = ParseMethodGroup(name);
    if (!group.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", line, ": expected groups among transfer, plan, memory, admin, got another"));
    }
    groups.set(static_cast<size_t>(*group));
  }
  return groups;
}

}  // namespace

absl::StatusOr<std::vector<TokenGrant>> ParseTokens(absl::string_view text) {
  std::vector<TokenGrant> grants;
  std::set<crypto::Digest> seen;
  size_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<absl::string_view> words = Words(line);
    if (words.empty()) continue;
    if (words.size() != 3) return Wrong(number, "3 words: token tenant groups", words.size());
    if (words[0].size() < kMinTokenLength) {
      return Wrong(number, absl::StrCat("a token of at least ", kMinTokenLength, " characters"),
                   words[0].size());
    }
    TokenGrant& grant = grants.emplace_back();
    grant.tenant = std::string(words[1]);
    KVB_ASSIGN_OR_RETURN(grant.groups, ParseGroups(number, words[2]));
    KVB_ASSIGN_OR_RETURN(
        grant.digest,
        crypto::Sha256Of({reinterpret_cast<const std::byte*>(words[0].data()), words[0].size()}));
    if (!seen.insert(grant.digest).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ": expected a token used once, got one of a line above"));
    }
    if (grants.size() > kMaxTokens) return Wrong(number, "at most 4096 tokens", grants.size());
  }
  return grants;
}

}  // namespace kvbridge::server
