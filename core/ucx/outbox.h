// The sending end of one transfer's frames.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"

namespace kvbridge::ucx {

// Sends without a copy. How many frames are under way at once is the caller's to bound.
//
// Destroying it ends the connection; frames under way are cancelled.
//
// Thread contract: every method may be called from any thread, none from two at once.
class Outbox {
 public:
  using OnSent = std::function<void(absl::Status)>;

  virtual ~Outbox() = default;

  // `payload` (not empty) is borrowed until `on_sent`, which is called once, on the node's thread:
  // OK when the receiver has taken it; UNAVAILABLE when the receiver is gone, or has not taken it
  // in the node's timeout; CANCELLED when the outbox was destroyed. After a failure every frame
  // fails.
  virtual void Send(std::string head, std::span<const std::byte> payload, OnSent on_sent) = 0;
};

}  // namespace kvbridge::ucx
