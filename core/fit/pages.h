// A large buffer that comes from the system and goes back to it at once. The allocator would keep
// it for later, and a process that promised to stay below a cap would hold two sweeps' worth.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace kvbridge::fit {

// Zeros, in pages of two megabytes where they are many and the system has them. Pages that are
// never touched take no memory. Thread contract: as a plain array's.
class Pages {
 public:
  // RESOURCE_EXHAUSTED when the system has not `bytes`, which is above 0.
  static absl::StatusOr<std::unique_ptr<Pages>> Map(uint64_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Pages(void* mapping, uint64_t mapped, void* data)
      : mapping_(mapping), mapped_(mapped), data_(data) {}

  void* const mapping_;
  const uint64_t mapped_;
  void* const data_;
};

}  // namespace kvbridge::fit
