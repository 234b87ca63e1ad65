#include "core/kv/buffer_pool.h"

#include <sys/mman.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/units.h"

namespace kvbridge::kv {
namespace {

constexpr size_t kAlignment = 64;

size_t Capacity(size_t bytes) {
  return (bytes / kAlignment + (bytes % kAlignment != 0)) * kAlignment;
}

// Tiles are read in strides of kilobytes: with small pages nearly every row misses the TLB.
std::byte* Allocate(size_t capacity) {
  constexpr size_t kLargePage = size_t{2} << 20;
  void* data = nullptr;
  const bool large = capacity >= 2 * kLargePage;
  if (posix_memalign(&data, large ? kLargePage : kAlignment, capacity) != 0) return nullptr;
  if (large) madvise(data, capacity - capacity % kLargePage, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace

TileBuffer::~TileBuffer() { pool_->Release(data_, capacity_); }

std::shared_ptr<BufferPool> BufferPool::Create(uint64_t max_bytes) {
  return std::shared_ptr<BufferPool>(new BufferPool(max_bytes));
}

BufferPool::~BufferPool() {
  for (const auto& [capacity, data] : idle_) std::free(data);
}

absl::StatusOr<std::shared_ptr<TileBuffer>> BufferPool::Acquire(size_t bytes) {
  base::MutexLock lock(&mutex_);
  if (const auto fit = idle_.lower_bound(bytes); fit != idle_.end() && fit->first / 2 <= bytes) {
    const auto [capacity, data] = *fit;
    idle_.erase(fit);
    idle_bytes_ -= capacity;
    used_bytes_ += capacity;
    return Lend(data, bytes, capacity);
  }
  const uint64_t room = max_bytes_ - used_bytes_;
  if (bytes > room || Capacity(bytes) > room) {
    return absl::ResourceExhaustedError(
        absl::StrCat("buffer pool: expected to stay within ", base::HumanBytes(max_bytes_),
                     ", got a request for ", base::HumanBytes(bytes), " with ",
                     base::HumanBytes(used_bytes_), " in use"));
  }
  const size_t capacity = Capacity(bytes);
  FreeIdleUntil(room - capacity);
  std::byte* data = Allocate(capacity);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("buffer pool: the system has no ", base::HumanBytes(bytes), " to give"));
  }
  used_bytes_ += capacity;
  return Lend(data, bytes, capacity);
}

std::shared_ptr<TileBuffer> BufferPool::Lend(std::byte* data, size_t size, size_t capacity) {
  return std::shared_ptr<TileBuffer>(new TileBuffer(shared_from_this(), data, size, capacity));
}

void BufferPool::Release(std::byte* data, size_t capacity) {
  base::MutexLock lock(&mutex_);
  used_bytes_ -= capacity;
  idle_bytes_ += capacity;
  idle_.emplace(capacity, data);
}

// Smallest first: they are the cheapest to fault in again.
void BufferPool::FreeIdleUntil(uint64_t idle_limit) {
  while (idle_bytes_ > idle_limit) {
    const auto smallest = idle_.begin();
    std::free(smallest->second);
    idle_bytes_ -= smallest->first;
    idle_.erase(smallest);
  }
}

uint64_t BufferPool::bytes_in_use() const {
  base::MutexLock lock(&mutex_);
  return used_bytes_;
}

uint64_t BufferPool::bytes_idle() const {
  base::MutexLock lock(&mutex_);
  return idle_bytes_;
}

}  // namespace kvbridge::kv
