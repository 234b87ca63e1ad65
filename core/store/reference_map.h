// The map of one head of one token by its definition (mapper.h), in FP64 and without tricks: what
// the self-test compares the device with.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv/kv_view.h"
#include "core/mapper/mapper.h"

namespace kvbridge::store {

struct ReferenceHead {
  std::vector<double> values;  // [target head_dim], keys rotated
  double magnitude = 0;        // norm over the head of |bias| + sum |x| |weight|, of every layer
};

// Target layer `layer`, head `head` of token `token` of `source`, which lies at `position` and
// whose keys are rotated. `source` has the mapper's source geometry.
ReferenceHead MapHead(const mapper::Mapper& mapper, const kv::KvView& source, int64_t token,
                      int64_t position, int32_t layer, kv::Component component, int32_t head);

}  // namespace kvbridge::store
