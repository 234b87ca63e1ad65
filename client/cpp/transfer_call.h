// One attempt: one Transfer stream from header to status.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/cpp/answer_sink.h"
#include "client/cpp/cache_view.h"
#include "client/cpp/chunk_buffers.h"
#include "client/cpp/transfer.h"
#include "kvbridge/v1/transfer.pb.h"

namespace grpc {
class Channel;
}

namespace kvbridge::client {

struct CallReport {
  // OK: the server ended the call in order, with `decision`, and no event was wrong. DATA_LOSS: an
  // answer that cannot be trusted, or none. Otherwise the server's status.
  absl::Status status;
  bool accepted = false;
  int64_t covered_tokens = 0;                    // as accepted
  v1::Plane peer_plane = v1::PLANE_UNSPECIFIED;  // as accepted, where the server has sent it on
  std::optional<v1::Decision> decision;
  std::string traceparent;  // of the server's span; empty = none came
  int64_t bytes_sent = 0;
  Timings timings;  // all but total
};

// What one attempt is made with. All of it is borrowed.
struct CallRequest {
  const v1::TransferHeader& header;
  absl::Time deadline;
  std::stop_token stop;
  const TransferOptions& options;                   // for who wants to know
  const SourceView* source = nullptr;               // null: it lies in a pool
  AnswerSink* sink = nullptr;                       // null: the answer goes to a pool
  std::shared_ptr<ChunkBuffers> buffers = nullptr;  // of kMaxChunkBytes
};

// Sends the header; after Accepted, and not before, the source's tokens, or word of how far they
// are there; takes the answer into the sink. No payload leaves before the server has reserved room
// for it, so an attempt that was not accepted may be repeated. Blocks until the call is over:
// gRPC's threads, which do the copying in both directions at once, have let go of the source (but
// for its owner) and the sink.
CallReport RunTransferCall(const std::shared_ptr<grpc::Channel>& channel,
                           const CallRequest& request);

}  // namespace kvbridge::client
