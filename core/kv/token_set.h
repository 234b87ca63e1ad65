// A set of tokens as sorted ranges that neither overlap nor touch: one range as long as tokens
// arrive in order, at most (n + 1) / 2 of them for n tokens in any order. Thread contract: one
// thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv/kv_view.h"

namespace kvbridge::kv {

class TokenSet {
 public:
  // How many tokens of `range` are in the set.
  int64_t CountIn(TokenRange range) const;
  // The first token of `range` that is in the set, or that is not; range.end when there is none.
  int64_t FirstIn(TokenRange range) const;
  int64_t FirstNotIn(TokenRange range) const;
  // `range` is not empty and none of it is in the set yet.
  void Insert(TokenRange range);

 private:
  std::vector<TokenRange> ranges_;
};

}  // namespace kvbridge::kv
