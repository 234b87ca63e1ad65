// What an inbox is on the node's thread: announced frames wait for a buffer, are received, and wait
// for a reader.
//
//   announced (in UCX, no payload) -> receiving (a buffer each) -> received -> reader
//
// Thread contract: the worker's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "core/kv/buffer_pool.h"
#include "core/ucx/connection.h"
#include "core/ucx/frame.h"
#include "core/ucx/inbox.h"

namespace kvbridge::ucx {

using Buffers = std::vector<std::shared_ptr<kv::TileBuffer>>;

class InboxCore : public std::enable_shared_from_this<InboxCore> {
 public:
  InboxCore(std::shared_ptr<Worker> worker, Buffers buffers,
            std::function<void(size_t)> on_received)
      : worker_(std::move(worker)),
        max_frame_bytes_(buffers.front()->size()),
        free_(std::move(buffers)),
        on_received_(std::move(on_received)) {}

  // The connection that showed the token; the first and only one.
  void Bind(std::unique_ptr<Connection> connection) {
    bound_ = true;
    connection_ = std::move(connection);
  }
  bool bound() const { return bound_; }
  bool connected() const { return connection_ != nullptr; }
  // A frame of it. `announced` is UCX's, to be received or released.
  void Announce(const FrameHeader& header, void* announced, size_t bytes);

  void Read(Inbox::OnFrame on_frame);
  void Fail(absl::Status why);
  void Close();

  // Nothing of it is left at UCX.
  bool finished() const { return closed_ && receiving_ == 0; }

 private:
  struct Incoming {
    InboxCore* core;
    std::string head;
    size_t bytes;
    void* announced;  // null once it is being received
    std::shared_ptr<kv::TileBuffer> buffer;
    bool received = false;
  };

  void Pump();
  void Receive(Incoming* frame);
  void Received(Incoming* frame, ucs_status_t status);
  void Deliver();
  Frame Lend(uint64_t sequence, Incoming frame);
  void PostPump();

  const std::shared_ptr<Worker> worker_;
  const size_t max_frame_bytes_;
  Buffers free_;
  const std::function<void(size_t)> on_received_;  // payload bytes
  std::unique_ptr<Connection> connection_;
  bool bound_ = false;
  std::map<uint64_t, std::unique_ptr<Incoming>> frames_;  // by sequence
  uint64_t next_received_ = 0;                            // the first that has no buffer yet
  uint64_t next_delivered_ = 0;                           // the first that no reader has had
  std::vector<void*> refused_;                            // announced, not to be received
  int receiving_ = 0;
  Inbox::OnFrame reader_;
  absl::Status failure_;
  bool closed_ = false;
};

}  // namespace kvbridge::ucx
