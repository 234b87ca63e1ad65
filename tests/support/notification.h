// absl::Notification's interface on a mutex that ThreadSanitizer can see (core/base/mutex.h).
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"

namespace kvbridge::test {

class Notification {
 public:
  void Notify() {
    base::MutexLock lock(&mutex_);
    notified_ = true;
    condition_.SignalAll();
  }
  bool HasBeenNotified() const {
    base::MutexLock lock(&mutex_);
    return notified_;
  }
  void WaitForNotification() const {
    base::MutexLock lock(&mutex_);
    while (!notified_) condition_.Wait(&mutex_);
  }
  bool WaitForNotificationWithTimeout(absl::Duration timeout) const {
    const absl::Time end = absl::Now() + timeout;
    base::MutexLock lock(&mutex_);
    while (!notified_ && absl::Now() < end) condition_.WaitFor(&mutex_, end - absl::Now());
    return notified_;
  }

 private:
  mutable base::Mutex mutex_;
  mutable base::CondVar condition_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvbridge::test
