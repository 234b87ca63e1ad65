// Ctrl-C. The first asks the running command to stop and clean up, the second ends the process.
#pragma once

#include <stop_token>
#include <thread>

namespace kvbridge::cli {

// Made once, by main, before any other thread: it blocks SIGINT and SIGTERM in all of them.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  std::jthread waiter_;
};

}  // namespace kvbridge::cli
