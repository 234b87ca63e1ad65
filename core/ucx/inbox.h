// The receiving end of one transfer's frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kvbridge::ucx {

// A received frame. Its memory goes back to the inbox with the last copy of `lease`; until then the
// inbox has one buffer less to receive into.
struct Frame {
  uint64_t sequence = 0;
  std::string head;
  std::span<const std::byte> payload;
  std::shared_ptr<const void> lease;
};

// Receives into its own few buffers and no further: whoever doesn't read, or holds frames, stops
// the sender. The first connection that shows the token is the only one that may.
//
// Destroying it forgets the token, ends the connection, and frees the buffers as soon as UCX and
// the holders of frames have let go of them. A callback may be running at that moment; none comes
// later.
//
// Thread contract: every method may be called from any thread.
class Inbox {
 public:
  using OnFrame = std::function<void(absl::StatusOr<Frame>)>;

  virtual ~Inbox() = default;

  // kTokenBytes random bytes: what the sender must show.
  virtual const std::string& token() const = 0;

  // Calls `on_frame` once, on the node's thread, with the next frame in sequence. One read at a
  // time. UNAVAILABLE: the sender is gone. DATA_LOSS: frames are missing, or larger than expected.
  virtual void Read(OnFrame on_frame) = 0;
};

}  // namespace kvbridge::ucx
