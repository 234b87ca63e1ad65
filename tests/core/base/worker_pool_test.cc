#include "core/base/worker_pool.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/notification.h"

namespace kvbridge::base {
namespace {

std::unique_ptr<WorkerPool> MakePool(WorkerPool::Options options) {
  auto pool = WorkerPool::Create(options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(WorkerPool, RefusesNonsense) {
  EXPECT_EQ(WorkerPool::Create({.threads = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WorkerPool::Create({.threads = 4097}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(WorkerPool, ALoopRunsEveryIterationOnce) {
  auto pool = MakePool({.threads = 4});
  std::vector<std::atomic<int>> seen(1000);
  pool->ParallelFor(1000, [&](int64_t i) { seen[i].fetch_add(1); });
  for (const auto& count : seen) EXPECT_EQ(count.load(), 1);
}

TEST(WorkerPool, LoopsNestAndRunBesideEachOther) {
  auto pool = MakePool({.threads = 2});
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 8; ++c) {
    callers.emplace_back([&] {
      pool->ParallelFor(
          10, [&](int64_t) { pool->ParallelFor(10, [&](int64_t) { total.fetch_add(1); }); });
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(total.load(), 800);
}

TEST(WorkerPool, ALoopOutlivesALateHelper) {
  // A helper that finds no iteration left must not touch the caller's frame, which is gone by then.
  auto pool = MakePool({.threads = 4});
  for (int round = 0; round < 2000; ++round) {
    int sum[3] = {0, 0, 0};
    pool->ParallelFor(3, [&](int64_t i) { sum[i] = round; });
    EXPECT_EQ(sum[0] + sum[1] + sum[2], 3 * round);
  }
}

TEST(WorkerPool, JobsRunInOrderAndMayUseLoops) {
  auto pool = MakePool({.threads = 1});
  std::vector<int> order;
  test::Notification done;
  for (int j = 0; j < 3; ++j) {
    ASSERT_TRUE(pool->Submit([&, j] {
                      pool->ParallelFor(2, [](int64_t) {});
                      order.push_back(j);
                      if (j == 2) done.Notify();
                    })
                    .ok());
  }
  done.WaitForNotification();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(WorkerPool, AFullQueueRefusesTheNewJob) {
  auto pool = MakePool({.threads = 1, .max_jobs = 1});
  test::Notification started;
  test::Notification release;
  ASSERT_TRUE(pool->Submit([&] {
                    started.Notify();
                    release.WaitForNotification();
                  })
                  .ok());
  started.WaitForNotification();
  ASSERT_TRUE(pool->Submit([] {}).ok());
  EXPECT_EQ(pool->Submit([] {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->queued_jobs(), 1u);
  release.Notify();
}

TEST(WorkerPool, StopRunsWhatIsQueuedAndRefusesWhatComesAfter) {
  auto pool = MakePool({.threads = 1});
  std::atomic<int> ran{0};
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pool->Submit([&] { ran.fetch_add(1); }).ok());
  pool->Stop();
  EXPECT_EQ(ran.load(), 10);
  EXPECT_EQ(pool->Submit([] {}).code(), absl::StatusCode::kUnavailable);
  pool->Stop();
}

TEST(WorkerPool, ProgressMoves) {
  auto pool = MakePool({.threads = 2});
  const uint64_t before = pool->progress();
  pool->ParallelFor(5, [](int64_t) {});
  EXPECT_EQ(pool->progress(), before + 5);
}

}  // namespace
}  // namespace kvbridge::base
