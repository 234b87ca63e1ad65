// Memory for weights: anonymous pages, two megabytes each where the system has them. Workers have
// the system back and clear them before anything is written: what it clears lies in the caches, and
// the packer's stores, which bypass those, are several times slower where that was just now. Pages
// lie on the NUMA nodes of the workers that asked for them.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

#include "core/base/worker_pool.h"

namespace kvbridge::device::cpu {

// Owns its pages. Thread contract: the bytes are the holder's to synchronise.
class HugeMemory {
 public:
  // RESOURCE_EXHAUSTED when the system refuses.
  static absl::StatusOr<HugeMemory> Allocate(size_t bytes, base::WorkerPool& workers);
  ~HugeMemory();
  HugeMemory(HugeMemory&& other) noexcept;
  HugeMemory& operator=(HugeMemory&& other) = delete;

  std::byte* data() const { return data_; }  // aligned to a large page
  size_t size() const { return size_; }

 private:
  HugeMemory(std::byte* mapping, size_t mapped, std::byte* data, size_t size)
      : mapping_(mapping), mapped_(mapped), data_(data), size_(size) {}

  std::byte* mapping_;
  size_t mapped_;
  std::byte* data_;
  size_t size_;
};

}  // namespace kvbridge::device::cpu
