#include "core/kv/buffer_pool.h"

#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "tests/core/kv/status_matcher.h"

namespace kvbridge::kv {
namespace {

using absl::StatusCode::kResourceExhausted;

TEST(BufferPoolTest, AReturnedBufferIsLentAgain) {
  const auto pool = BufferPool::Create(1 << 20);
  auto first = pool->Acquire(4096).value();
  const std::byte* memory = first->data();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
  EXPECT_EQ(first->size(), 4096u);
  EXPECT_EQ(pool->bytes_in_use(), 4096u);
  first.reset();
  EXPECT_EQ(pool->bytes_in_use(), 0u);
  EXPECT_EQ(pool->bytes_idle(), 4096u);

  const auto shorter = pool->Acquire(3000).value();
  EXPECT_EQ(shorter->data(), memory);
  EXPECT_EQ(shorter->size(), 3000u);
  EXPECT_EQ(pool->bytes_idle(), 0u);
}

TEST(BufferPoolTest, ABufferMoreThanTwiceTooLargeIsNotWasted) {
  const auto pool = BufferPool::Create(1 << 20);
  pool->Acquire(4096).value().reset();
  const auto tiny = pool->Acquire(64).value();
  EXPECT_EQ(pool->bytes_in_use(), 64u);
  EXPECT_EQ(pool->bytes_idle(), 4096u);
}

TEST(BufferPoolTest, LoansNeverExceedTheLimitAndTheErrorNamesIt) {
  const auto pool = BufferPool::Create(8192);
  const auto first = pool->Acquire(4096).value();
  EXPECT_THAT(pool->Acquire(4097), IsError(kResourceExhausted, "8.0 KiB"));
  EXPECT_EQ(pool->bytes_in_use(), 4096u);
  EXPECT_TRUE(pool->Acquire(4096).ok());
  EXPECT_THAT(pool->Acquire(std::numeric_limits<size_t>::max()),
              IsError(kResourceExhausted, "buffer pool"));
}

TEST(BufferPoolTest, IdleBuffersMakeRoomForLoans) {
  const auto pool = BufferPool::Create(8192);
  pool->Acquire(1024).value().reset();
  pool->Acquire(4096).value().reset();
  const auto large =
      pool->Acquire(3 * 1024 - 64 + 1024 * 2).value();  // 5056: neither idle one fits
  EXPECT_LE(pool->bytes_in_use() + pool->bytes_idle(), 8192u);
  EXPECT_EQ(pool->bytes_in_use(), 5056u);
}

TEST(BufferPoolTest, ABufferMayOutliveTheHandleOfItsPool) {
  auto pool = BufferPool::Create(1 << 20);
  auto buffer = pool->Acquire(256).value();
  pool.reset();
  std::memset(buffer->data(), 1, buffer->size());
  EXPECT_EQ(buffer->data()[255], std::byte{1});
}

TEST(BufferPoolTest, ConcurrentBorrowersNeverShareMemory) {
  const auto pool = BufferPool::Create(1 << 20);
  std::vector<std::thread> borrowers;
  for (int id = 0; id < 4; ++id) {
    borrowers.emplace_back([&pool, id] {
      for (int round = 0; round < 500; ++round) {
        const auto buffer = pool->Acquire(1024 + 64 * (round % 7)).value();
        std::memset(buffer->data(), id, buffer->size());
        for (size_t i = 0; i < buffer->size(); ++i) {
          ASSERT_EQ(buffer->data()[i], std::byte(id));
        }
      }
    });
  }
  for (std::thread& borrower : borrowers) borrower.join();
  EXPECT_EQ(pool->bytes_in_use(), 0u);
}

}  // namespace
}  // namespace kvbridge::kv
