// Says on stderr what is going on when it takes more than two seconds.
#pragma once

#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/notification.h"

#include "core/base/mutex.h"

namespace kvbridge::cli {

// From construction to destruction. On a terminal one line that counts seconds, elsewhere a line
// every ten. Silent for what is quick.
class Progress {
 public:
  Progress(std::string what, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // What is going on now. Any thread.
  void Update(std::string what);

 private:
  void Run();

  base::Mutex mutex_;
  std::string what_ ABSL_GUARDED_BY(mutex_);
  absl::Notification done_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kvbridge::cli
