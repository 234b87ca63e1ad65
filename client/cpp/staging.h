// Shared memory for caches that lie elsewhere: copied in, mapped, copied out, and used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cpp/cache_view.h"
#include "client/cpp/pool.h"

namespace kvbridge::client {

// Thread contract: any thread.
class Staging {
 public:
  // At most `max_bytes` of pools at a time.
  explicit Staging(size_t max_bytes) : max_bytes_(max_bytes) {}

  // A pool for one cache of `tokens` tokens of this model, for whoever takes it alone.
  // RESOURCE_EXHAUSTED when there is no room for it, or Refuse's error for some seconds after it.
  // `dropped`: idle pools that had to go for it; a session must forget them.
  absl::StatusOr<std::shared_ptr<const Pool>> Take(
      const v1::ModelSpec& model, const google::protobuf::RepeatedPtrField<v1::LayerScales>& scales,
      int64_t tokens, std::vector<std::shared_ptr<const Pool>>* dropped);
  // `reusable`: no server reads or writes it any more.
  void Return(std::shared_ptr<const Pool> pool, bool reusable);
  // A server could not map a pool: nobody need touch fresh memory in vain for a while.
  void Refuse(absl::Status why);

 private:
  const size_t max_bytes_;
  std::mutex mutex_;  // guards all below
  size_t bytes_ = 0;  // of all pools, taken or idle
  std::vector<std::shared_ptr<const Pool>> idle_;
  absl::Status refusal_;
  absl::Time retry_at_ = absl::InfinitePast();
};

// Pages 0, 1, 2, ... of a staging pool.
std::vector<int32_t> StagingPages(const Pool& pool, int64_t tokens);

// Tokens [begin, end) from one cache to another of the same shape.
void CopyTokens(const CacheView<const std::byte>& from, const TargetView& to, int64_t begin,
                int64_t end);

}  // namespace kvbridge::client
