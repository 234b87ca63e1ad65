// Warm buffers for gathered chunks: fresh memory costs more to touch than the copy itself.
//
// Thread contract: any thread. A buffer may outlive the pool's other owners: whoever releases it
// last keeps it alive.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace kvbridge::client {

class ChunkBuffers {
 public:
  // Keeps at most `max_idle` buffers that nobody uses; the rest is freed at once.
  ChunkBuffers(size_t buffer_bytes, size_t max_idle)
      : buffer_bytes_(buffer_bytes), max_idle_(max_idle) {}

  using Buffer = std::unique_ptr<std::byte[]>;
  Buffer Acquire();
  void Release(Buffer buffer);

  size_t buffer_bytes() const { return buffer_bytes_; }

 private:
  const size_t buffer_bytes_;
  const size_t max_idle_;
  std::mutex mutex_;  // guards all below
  std::vector<Buffer> idle_;
};

}  // namespace kvbridge::client
