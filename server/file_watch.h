// Looks at files now and then, and tells when what they hold has changed. By content: a file that
// is written in place, renamed over, or reached through a symlink that was swapped (as Kubernetes
// does) is the same to it, and touching a file is no change.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"

namespace kvbridge::server {

// Files that belong together.
struct Watched {
  std::function<std::vector<std::string>()> files;  // which they are now
  absl::Duration interval;
  std::function<void()> on_change;  // called from the watch's thread
};

// Thread contract: made and destroyed by one thread; Kick by any.
class FileWatch {
 public:
  // What the files hold now is known; only changes from here on are told.
  explicit FileWatch(std::vector<Watched> watched);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // Tells every change callback soon, changed or not.
  void Kick();

 private:
  struct Entry {
    Watched watched;
    std::string seen;
    absl::Duration due;  // of the steady clock: a step of the wall clock changes nothing
  };

  void Main();
  void Look(bool kicked, absl::Duration now);
  // False at the end; sets `kicked`.
  bool Sleep(bool* kicked);

  std::vector<Entry> entries_;  // the thread's own
  base::Mutex mutex_;
  base::CondVar wake_;
  bool kicked_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvbridge::server
