// A transfer that goes on as its test says, step by step.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "kvbridge/v1/transfer.grpc.pb.h"
#include "tests/integration/server_harness.h"

namespace kvbridge::server {

inline bool Eventually(const std::function<bool()>& holds) {
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (!holds()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// An admitted transfer that reads its source as it is told, and holds its pins meanwhile.
class HeldTransfer {
 public:
  HeldTransfer(const ServerHarness& harness, v1::TransferHeader header,
               absl::Duration deadline = absl::InfiniteDuration())
      : stub_(v1::KvBridge::NewStub(harness.Connect())) {
    if (deadline != absl::InfiniteDuration()) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + deadline));
    }
    stream_ = stub_->Transfer(&context_);
    v1::TransferRequest request;
    *request.mutable_header() = std::move(header);
    request.mutable_header()->set_streamed_source(true);
    EXPECT_TRUE(stream_->Write(request));
    EXPECT_TRUE(Next().has_accepted());
  }
  void Ready(int64_t token_end) {
    v1::TransferRequest request;
    request.mutable_ready_up_to()->set_token_end(token_end);
    EXPECT_TRUE(stream_->Write(request));
  }
  v1::TransferEvent Next() {
    v1::TransferEvent event;
    if (!stream_->Read(&event)) event.Clear();
    return event;
  }
  // Reads to the end. Exactly one decision comes, and nothing after it.
  v1::Decision Decision() {
    v1::Decision decision;
    int decisions = 0;
    for (v1::TransferEvent event = Next(); event.event_case() != 0; event = Next()) {
      EXPECT_EQ(decisions, 0);
      if (!event.has_completed()) continue;
      decision = event.completed().decision();
      ++decisions;
    }
    EXPECT_EQ(decisions, 1);
    EXPECT_TRUE(stream_->Finish().ok());
    return decision;
  }
  void Cancel() {
    context_.TryCancel();
    EXPECT_EQ(AwaitEnd(), grpc::CANCELLED);
  }
  grpc::StatusCode AwaitEnd() {
    while (Next().event_case() != 0) {
    }
    return stream_->Finish().error_code();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::KvBridge::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::TransferRequest, v1::TransferEvent>> stream_;
};

}  // namespace kvbridge::server
