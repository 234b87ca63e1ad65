// The rows that one network is trained on, read from a folder of shards into memory.
//
// Thread contract: one thread; pieces are read on the pool.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "core/base/worker_pool.h"
#include "core/fit/shard_folder.h"
#include "core/kv/kv_view.h"
#include "core/mapper/mapper.h"

namespace kvbridge::fit {

// Fitted rows first, then those held out; each by sequence id, then position.
struct MlpRows {
  std::vector<uint16_t> features;  // BF16, as they are served: [rows, map.inputs()]
  std::vector<float> targets;      // [rows, target heads * head_dim]
};

// What `map`, K or V of `target_layer`, reads and is to give. INVALID_ARGUMENT for a number that is
// not finite, naming the shard; DATA_LOSS when a file is not what it was when the folder was
// opened.
absl::StatusOr<MlpRows> ReadMlpRows(const ShardFolder& folder, int64_t token_stride,
                                    bool strip_rope, const mapper::LayerMap& map,
                                    int32_t target_layer, kv::Component component,
                                    base::WorkerPool* pool);

// Bytes of them for one map.
uint64_t MlpRowBytes(const ShardFolder& folder, const mapper::LayerMap& map);

}  // namespace kvbridge::fit
