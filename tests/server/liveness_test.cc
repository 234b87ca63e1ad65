#include "server/liveness.h"

#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"
#include "tests/support/notification.h"

namespace kvbridge::server {
namespace {

TEST(LivenessTest, WorkThatWaitsAndWorkersThatFinishNothingAreNotWell) {
  const auto workers = base::WorkerPool::Create({.threads = 1}).value();
  test::FakeClock clock;
  Liveness liveness(workers.get(), &clock);
  clock.Advance(absl::Hours(1));
  EXPECT_TRUE(liveness.Check().ok) << "idle is well, however long";

  test::Notification started, release;
  ASSERT_TRUE(workers
                  ->Submit([&] {
                    started.Notify();
                    release.WaitForNotification();
                  })
                  .ok());
  started.WaitForNotification();
  test::Notification done;
  ASSERT_TRUE(workers->Submit([&] { done.Notify(); }).ok());
  EXPECT_TRUE(liveness.Check().ok) << "the first look only starts the watch";
  clock.Advance(Liveness::kPatience - absl::Seconds(1));
  EXPECT_TRUE(liveness.Check().ok);
  clock.Advance(absl::Seconds(1));
  EXPECT_FALSE(liveness.Check().ok);
  release.Notify();
  done.WaitForNotification();
  EXPECT_TRUE(liveness.Check().ok);
}

}  // namespace
}  // namespace kvbridge::server
