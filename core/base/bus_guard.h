// Keeps the process alive when a mapped file shrinks under it. Touching a page that the file no
// longer has raises SIGBUS, which ends a process; inside a guarded range that page and all behind
// it become memory of this process's own, zeros, and the guard says so. An artifact that someone
// copies over in place, or an engine that cuts its shared memory short, must not take a server down
// with it.
//
// The first guard installs the process's SIGBUS handler; faults elsewhere go to the one before.
// Thread contract: any thread. The range is mapped for as long as the guard lives.
#pragma once

#include <cstddef>

namespace kvbridge::base {

class BusGuard {
 public:
  static constexpr size_t kMost = 256;  // ranges of a process that are guarded at once

  // `writable`: as the range is mapped. See active().
  BusGuard(const void* data, size_t size, bool writable = false);
  ~BusGuard();
  BusGuard(const BusGuard&) = delete;
  BusGuard& operator=(const BusGuard&) = delete;

  // False for one too many, and for an empty range.
  bool active() const { return slot_ >= 0; }
  // Whether a page of the range was gone when it was touched. Once true it stays so.
  bool hit() const;

  // Ranges that are guarded now.
  static size_t InUse();

 private:
  int slot_;  // -1 = not guarded
};

}  // namespace kvbridge::base
