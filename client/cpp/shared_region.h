// Memory of this process that a kvbridged on the same host can map, too: a sealed memfd, or a named
// segment. It is the caller's: whatever becomes of the server, it stays what it is.
//
// Allocate an engine's cache in one and describe it as a Pool (pool.h); then a transfer sends page
// tables only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kvbridge::client {

// Thread contract: immutable; what lies in it is the callers' affair. After fork() a child shares
// the memory.
class SharedRegion {
 public:
  // At least `bytes`, as whole pages, zeroed. RESOURCE_EXHAUSTED when the host has none: nothing
  // that is touched later can fail.
  static absl::StatusOr<std::shared_ptr<const SharedRegion>> Create(size_t bytes);
  // All whole pages of a segment that is in /dev/shm already, for engines that have one and for
  // servers that descriptors don't reach. `name` as shm_open takes it; the server has to allow it
  // (docs/memory.md). `writable`: targets may lie in it. Nobody may cut it short while it is used:
  // transfers would fall back, and whoever touches what is gone gets SIGBUS. INVALID_ARGUMENT: it
  // can't be opened, or has not a page.
  static absl::StatusOr<std::shared_ptr<const SharedRegion>> Named(const std::string& name,
                                                                   bool writable = true);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_; }
  const std::string& name() const { return name_; }  // without a slash; empty: it has none
  bool writable() const { return writable_; }        // by the server

 private:
  SharedRegion() = default;

  int fd_ = -1;
  std::string name_;
  bool writable_ = true;
  std::span<std::byte> bytes_;
};

}  // namespace kvbridge::client
