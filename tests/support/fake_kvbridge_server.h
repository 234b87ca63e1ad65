// A kvbridged that keeps the stream's contract with an identity map, or breaks it in one chosen
// way: for tests of clients. It speaks through generated code, so it also checks that chunks are
// ordinary protobuf.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"

#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::test {

enum class Behaviour {
  kIdentity,             // the answer is the source, for the covered tokens
  kRefuse,               // Completed only: `refusal`
  kFailAfterChunks,      // some chunks, then Completed: fallback with non_finite
  kCloseMidway,          // some chunks, then status UNAVAILABLE
  kNoCompleted,          // all chunks, then status OK without Completed
  kDamagedCrc,           // one chunk's checksum is wrong
  kMissingChunk,         // applied, but one chunk never came
  kDuplicateChunk,       // one chunk comes twice
  kChunkBeyondCovered,   // a token more than Accepted said
  kChunkBeforeAccepted,  // the answer comes before the admission
  kAppliedAtOnce,        // applied before it has read any of the source
  kAcceptsTooMuch,       // more covered tokens than were sent
  kCompletedTwice,       // applied, and applied again
  kAppliedAfterError,    // fallback, then applied
  kErrorStatus,          // applied, but the call ends with INTERNAL
  kSilent,               // reads, never answers
  kStall,                // one chunk, then nothing until Release()
};

class FakeKvbridgeServer {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";
    Behaviour behaviour = Behaviour::kIdentity;
    v1::Decision refusal;        // for kRefuse
    v1::ModelSpec route_target;  // of the route "small-to-large", as GetCapabilities says
    int64_t tile_tokens = 4;     // in Accepted
    int unavailable_calls = 0;   // the first calls end with UNAVAILABLE at once
    int accepted_then_lost = 0;  // of the calls after those, the first end so after Accepted
  };
  explicit FakeKvbridgeServer(Options options);
  ~FakeKvbridgeServer();

  // What a client connects to.
  std::string target() const;
  // Of the last Transfer; `calls` counts all of them.
  v1::TransferHeader last_header() const;
  std::string last_metadata(const std::string& name) const;  // its; empty = none
  int calls() const;
  int64_t payload_chunks() const;
  // kStall has sent its chunk.
  void WaitUntilStalled();
  void Release();

 private:
  class Service;
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace kvbridge::test
