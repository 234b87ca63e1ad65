// Memory for weights: anonymous pages, two megabytes each where the system has them, untouched
// until a worker writes them (so that they lie on that worker's NUMA node).
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace kvbridge::device::cpu {

// Owns its pages. Thread contract: the bytes are the holder's to synchronise.
class HugeMemory {
 public:
  // RESOURCE_EXHAUSTED when the system refuses.
  static absl::StatusOr<HugeMemory> Allocate(size_t bytes);
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
