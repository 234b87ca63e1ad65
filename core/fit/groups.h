// Which columns a layout regresses on which: the groups of moments.h, without their numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/moments.h"
#include "core/model/model_spec.h"

namespace kvbridge::fit {

// Groups in their order: keys before values, then heads. FAILED_PRECONDITION for head_local where
// head counts differ.
absl::StatusOr<std::vector<MomentGroup>> MakeGroups(Layout layout, const model::KvGeometry& source,
                                                    const model::KvGeometry& target);

// "key", "value", "joint", "key.3": of a group that MakeGroups made.
std::string GroupName(Layout layout, const MomentGroup& group);

// One head of one layer: the unit in which shards are read. Adjacent ones fill a group's columns.
struct HeadColumns {
  kv::Component component = kv::Component::kKey;
  int32_t layer = 0;
  int32_t head = 0;
};
// The heads of `blocks` in column order.
std::vector<HeadColumns> HeadsOf(const std::vector<ColumnBlock>& blocks, int32_t kv_heads);

}  // namespace kvbridge::fit
