// One process's UCX: a worker, a thread that moves its bytes, and, if asked for, a listener. Active
// messages with rendezvous only; what a transfer receives is bounded by its inbox.
//
// UCX neither encrypts nor authenticates: between hosts it is for networks that are trusted, and an
// inbox's token, told over an authenticated channel, keeps strangers' frames out of a transfer.
//
// Two implementations, chosen by the linked target: libucx, and none (kvbridge::ucx_off).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/kv/buffer_pool.h"
#include "core/ucx/inbox.h"
#include "core/ucx/outbox.h"

namespace kvbridge::ucx {

struct NodeOptions {
  std::string listen;  // "host:port", numeric, port 0 = any; empty = this node only sends
  std::string transports = "tcp";              // as UCX_TLS names them
  absl::Duration timeout = absl::Seconds(30);  // of a frame under way, and of a silent connection
  int max_connections = 256;                   // accepted ones; more are refused
};

struct InboxOptions {
  size_t max_frame_bytes = 0;  // payload
  int frames = 4;              // buffers of that size
};

// Since the node was made.
struct NodeCounts {
  int64_t frames_received = 0;
  int64_t bytes_received = 0;
  int64_t frames_sent = 0;
  int64_t bytes_sent = 0;
  int64_t unknown_tokens = 0;  // frames dropped with their connection
  int64_t malformed = 0;       // likewise
  int64_t connections = 0;     // open now, accepted ones
};

// Outlives its inboxes and outboxes. Its thread sleeps when nothing moves.
//
// Thread contract: every method may be called from any thread but the node's own.
class Node {
 public:
  virtual ~Node() = default;

  // As it was bound; empty when it does not listen.
  virtual const std::string& address() const = 0;

  // RESOURCE_EXHAUSTED when `buffers` has no room for the inbox's.
  virtual absl::StatusOr<std::unique_ptr<Inbox>> Expect(const InboxOptions& options,
                                                        kv::BufferPool& buffers) = 0;

  // INVALID_ARGUMENT for an address ("host:port", numeric) or token that can't be one. That nobody
  // answers there is told by the first frame.
  virtual absl::StatusOr<std::unique_ptr<Outbox>> Connect(absl::string_view address,
                                                          absl::string_view token) = 0;

  virtual NodeCounts counts() const = 0;
};

// UNIMPLEMENTED in a build without UCX; INVALID_ARGUMENT and UNAVAILABLE name what UCX refused.
absl::StatusOr<std::unique_ptr<Node>> MakeNode(const NodeOptions& options);

}  // namespace kvbridge::ucx
