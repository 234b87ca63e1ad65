// Keeps the process alive when a mapped file shrinks under it. Reading a page that the file no
// longer has raises SIGBUS, which ends a process; inside a guarded range the page reads as zeros
// instead, and the guard says so. An artifact that someone copies over in place must not take a
// server down with it.
//
// The first guard installs the process's SIGBUS handler; faults elsewhere go to the one before.
// Thread contract: any thread. The range is mapped for as long as the guard lives.
#pragma once

#include <cstddef>

namespace kvbridge::base {

class BusGuard {
 public:
  // At most 256 ranges are guarded at once; those beyond are not.
  BusGuard(const void* data, size_t size);
  ~BusGuard();
  BusGuard(const BusGuard&) = delete;
  BusGuard& operator=(const BusGuard&) = delete;

  // Whether a page of the range was gone when it was read.
  bool hit() const;

 private:
  int slot_;  // -1 = not guarded
};

}  // namespace kvbridge::base
