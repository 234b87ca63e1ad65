// Memory of this process that a kvbridged on the same host can map, too: a sealed memfd. It is the
// caller's: whatever becomes of the server, it stays what it is.
//
// Allocate an engine's cache in one and describe it as a Pool (pool.h); then a transfer sends page
// tables only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "absl/status/statusor.h"

namespace kvbridge::client {

// Thread contract: immutable; what lies in it is the callers' affair. After fork() a child shares
// the memory.
class SharedRegion {
 public:
  // At least `bytes`, as whole pages, zeroed. RESOURCE_EXHAUSTED when the host has none: nothing
  // that is touched later can fail.
  static absl::StatusOr<std::shared_ptr<const SharedRegion>> Create(size_t bytes);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_; }

 private:
  SharedRegion() = default;

  int fd_ = -1;
  std::span<std::byte> bytes_;
};

}  // namespace kvbridge::client
