// A large buffer that comes from the system and goes back to it at once. The allocator would keep
// it for later, and a process that promised to stay below a cap would hold it twice.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace kvbridge::base {

// Zeros. Pages that are never touched take no memory. Thread contract: as a plain array's.
class Pages {
 public:
  static constexpr uint64_t kLarge = uint64_t{2} << 20;  // bytes of a large page

  // In large pages where they are many and the system has them. RESOURCE_EXHAUSTED when the system
  // has not `bytes`, which is above 0.
  static absl::StatusOr<std::unique_ptr<Pages>> Map(uint64_t bytes);
  // The same, in large pages however few, and aligned to them.
  static absl::StatusOr<std::unique_ptr<Pages>> MapLarge(uint64_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint64_t size() const { return size_; }  // bytes that were asked for

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Pages(void* mapping, uint64_t mapped, void* data, uint64_t size)
      : mapping_(mapping), mapped_(mapped), data_(data), size_(size) {}

  // Room for a large page more than `bytes` is `slack`.
  static absl::StatusOr<std::unique_ptr<Pages>> Map(uint64_t bytes, uint64_t slack);

  void* const mapping_;
  const uint64_t mapped_;
  void* const data_;
  const uint64_t size_;
};

}  // namespace kvbridge::base
