// Cache files: one model's KV cache on disk, for tools and tests.
//
// A safetensors file with `keys` and `values` [layers, kv_heads, tokens, head_dim] in the
// geometry's element type, `positions` [tokens] I64, optionally `token_ids` [tokens] I64, FP8 only
// `key_scales` and `value_scales` [layers, kv_heads] F32 (value = scale * code), and the metadata
// format "kvbridge-cache", schema "1", and identity, geometry and rope as JSON (spec_json.h). Keys
// lie as attention reads them: rotated. Positions increase strictly and stay below the rope's
// max_position.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/kv/kv_view.h"
#include "core/model/model_spec.h"

namespace kvbridge::artifact {

// A cache and what must be known about it.
struct CacheFile {
  model::ModelSpec spec;
  std::vector<int64_t> positions;       // [tokens]
  std::vector<int64_t> token_ids;       // [tokens] or empty
  kv::KvView view;                      // head-major, contiguous
  std::shared_ptr<const void> storage;  // what `view` points into
};

// Maps the file; the view is for reading only. INVALID_ARGUMENT names what is malformed.
absl::StatusOr<CacheFile> ReadCacheFile(const std::filesystem::path& path);

// Writes `cache` whole or not at all; its view may have any layout.
absl::Status WriteCacheFile(const std::filesystem::path& path, const CacheFile& cache);

}  // namespace kvbridge::artifact
