// Says on stderr what is going on when it takes more than two seconds.
#pragma once

#include <string>
#include <thread>

#include "absl/synchronization/notification.h"

namespace kvbridge::cli {

// From construction to destruction. On a terminal one line that counts seconds, elsewhere a line
// every ten. Silent for what is quick.
class Progress {
 public:
  Progress(std::string what, bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void Run() const;

  const std::string what_;
  absl::Notification done_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kvbridge::cli
