// One attempt: one Transfer stream from header to status.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>

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
  std::optional<v1::Decision> decision;
  int64_t bytes_sent = 0;
  Timings timings;  // all but total
};

// Sends the header; after Accepted, and not before, the source's tokens; takes the answer into
// `sink`. No payload leaves before the server has reserved room for it, so an attempt that was not
// accepted may be repeated. Blocks until the call is over: gRPC's threads, which do the copying in
// both directions at once, have let go of `source` (but for its owner) and `sink`.
CallReport RunTransferCall(const std::shared_ptr<grpc::Channel>& channel,
                           const v1::TransferHeader& header, absl::Time deadline,
                           const std::stop_token& stop, const SourceView& source,
                           const std::shared_ptr<ChunkBuffers>& buffers, AnswerSink* sink);

}  // namespace kvbridge::client
