#include "client/cpp/chunk_buffers.h"

#include <utility>

namespace kvbridge::client {

ChunkBuffers::Buffer ChunkBuffers::Acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Buffer buffer = std::move(idle_.back());
      idle_.pop_back();
      return buffer;
    }
  }
  return std::make_unique_for_overwrite<std::byte[]>(buffer_bytes_);
}

void ChunkBuffers::Release(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < max_idle_) idle_.push_back(std::move(buffer));
}

}  // namespace kvbridge::client
