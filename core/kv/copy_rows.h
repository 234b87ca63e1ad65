// Moves tokens of one cache to another as they lie.
#pragma once

#include <cstdint>

#include "core/kv/kv_view.h"

namespace kvbridge::kv {

// Copies tokens [range) of one layer and component to `to`, from its token `to_begin` on. Both have
// the same heads, head_dim, dtype and scales, in any layouts; they share no byte.
//
// Thread contract: a pure function of its views.
void CopyRows(const KvView& from, int32_t layer, Component c, TokenRange range, const KvView& to,
              int64_t to_begin);

}  // namespace kvbridge::kv
