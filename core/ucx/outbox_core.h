// What an outbox is on the node's thread: a connection, and the frames under way on it.
//
// Thread contract: the worker's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "core/ucx/connection.h"
#include "core/ucx/outbox.h"

namespace kvbridge::ucx {

inline constexpr unsigned kFrameMessage = 1;  // id of the one active message

class OutboxCore : public std::enable_shared_from_this<OutboxCore> {
 public:
  OutboxCore(Worker* worker, std::string token, std::function<void(size_t)> on_taken)
      : worker_(worker), token_(std::move(token)), on_taken_(std::move(on_taken)) {}

  void Connect(const SocketAddress& address);
  void Send(const std::string& head, std::span<const std::byte> payload, Outbox::OnSent on_sent);
  // UNAVAILABLE to all frames when the oldest is older than `timeout`.
  void CheckTimeout(absl::Time now, absl::Duration timeout);
  void Close();

  // Nothing of it is left at UCX.
  bool finished() const { return connection_ == nullptr && under_way_.empty(); }

 private:
  struct Sending {
    OutboxCore* core;
    std::string header;  // UCX reads it until the frame is taken
    size_t bytes;
    absl::Time since;
    Outbox::OnSent on_sent;
    std::list<Sending>::iterator self;
  };

  void Fail(absl::Status why);
  void Sent(std::list<Sending>::iterator frame, ucs_status_t status);

  Worker* const worker_;
  const std::string token_;
  const std::function<void(size_t)> on_taken_;  // payload bytes
  std::unique_ptr<Connection> connection_;
  absl::Status failure_;
  uint64_t sequence_ = 0;
  std::list<Sending> under_way_;  // oldest first
};

}  // namespace kvbridge::ucx
