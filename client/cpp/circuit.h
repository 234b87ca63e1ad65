// Stops asking a server that does not answer: after `threshold` failures in a row every call is
// refused at once for `open_for`; then one call at a time is let through until one succeeds.
//
// Thread contract: any thread. Time is passed in.
#pragma once

#include <mutex>

#include "absl/time/time.h"

namespace kvbridge::client {

class Circuit {
 public:
  enum class State { kClosed = 0, kHalfOpen = 1, kOpen = 2 };

  Circuit(int threshold, absl::Duration open_for) : threshold_(threshold), open_for_(open_for) {}

  // Whether a call may be made now. A call that was let through reports back with exactly one of
  // the three below.
  bool Admit(absl::Time now);
  void Succeeded();
  void Failed(absl::Time now);
  // It said nothing about the server: the caller cancelled it.
  void Abandoned();

  State state(absl::Time now) const;

 private:
  const int threshold_;
  const absl::Duration open_for_;
  mutable std::mutex mutex_;  // guards all below
  int failures_ = 0;          // in a row
  absl::Time open_until_ = absl::InfinitePast();
  bool probing_ = false;
};

}  // namespace kvbridge::client
