// Callers that go away, don't read, or don't stop; and servers that do.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_harness.h"
#include "tests/support/notification.h"

namespace kvbridge::server {
namespace {

size_t OpenFds() { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); }

// 64 KiB of answer per token: real sizes, little arithmetic.
HarnessOptions WideAnswers() {
  HarnessOptions options;
  options.map.source = {.layers = 2, .kv_heads = 1, .head_dim = 32};
  options.map.target = {.layers = 16, .kv_heads = 8, .head_dim = 128};
  options.map.top_k = 1;
  options.configure = [](v1::Config* config) { config->mutable_engine()->set_tile_tokens(64); };
  return options;
}

// A stream that has sent its header and been admitted.
struct OpenStream {
  OpenStream(const ServerHarness& harness, int64_t tokens)
      : stub(v1::KvBridge::NewStub(harness.Connect())), stream(stub->Transfer(&context)) {
    v1::TransferRequest request;
    *request.mutable_header() = harness.Header(tokens);
    v1::TransferEvent event;
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->Read(&event) && event.has_accepted());
  }
  void Upload(const std::vector<v1::TransferChunk>& chunks) {
    for (const auto& chunk : chunks) {
      v1::TransferRequest request;
      *request.mutable_chunk() = chunk;
      if (!stream->Write(request)) return;
    }
    stream->WritesDone();
  }

  grpc::ClientContext context;
  std::unique_ptr<v1::KvBridge::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<v1::TransferRequest, v1::TransferEvent>> stream;
};

TEST(StressTest, ASilentStreamFallsBackAndFreesWhatItReserved) {
  HarnessOptions options = WideAnswers();
  options.configure = [](v1::Config* config) {
    auto* timeout = config->mutable_limits()->mutable_idle_timeout();
    timeout->set_seconds(0);
    timeout->set_nanos(100'000'000);
  };
  ServerHarness harness(options);
  OpenStream silent(harness, 64);
  v1::TransferEvent event;
  ASSERT_TRUE(silent.stream->Read(&event));
  EXPECT_EQ(event.completed().decision().reason(), v1::REASON_TRANSPORT);
  EXPECT_EQ(event.completed().decision().detail(), "stream: nothing was sent or read for 100ms");
  EXPECT_FALSE(silent.stream->Read(&event));
  EXPECT_TRUE(silent.stream->Finish().ok());
  EXPECT_TRUE(harness.Quiet());

  // One that does not even read its answer is cancelled.
  OpenStream deaf(harness, 2048);
  DenseCache source(harness.mapper().source.geometry, 2048);
  source.Randomise(7);
  deaf.Upload(harness.Chunks(source));
  EXPECT_TRUE(harness.Quiet());
  while (deaf.stream->Read(&event)) EXPECT_FALSE(event.has_completed());
  EXPECT_EQ(deaf.stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(StressTest, SixtyFourStreamsCancelledAnywhereLeaveNothing) {
  ServerHarness harness;
  DenseCache source(harness.mapper().source.geometry, 200);
  source.Randomise(5);
  const auto chunks = harness.Chunks(source);
  ASSERT_EQ(harness.Call(harness.Header(200), chunks).decision.outcome(), v1::OUTCOME_APPLIED);
  const size_t fds = OpenFds();
  std::vector<std::thread> callers;
  for (int i = 0; i < 64; ++i) {
    callers.emplace_back([&harness, &chunks, i] {
      std::mt19937 random(i);
      OpenStream call(harness, 200);
      const size_t after = random() % (chunks.size() + 1);
      call.Upload({chunks.begin(), chunks.begin() + after});
      v1::TransferEvent event;
      for (size_t reads = random() % 20; reads > 0 && after == chunks.size(); --reads) {
        if (!call.stream->Read(&event)) break;
      }
      call.context.TryCancel();
      while (call.stream->Read(&event)) {
      }
      call.stream->Finish();
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_TRUE(harness.Quiet());
  EXPECT_EQ(harness.Call(harness.Header(200), chunks).decision.outcome(), v1::OUTCOME_APPLIED);
  EXPECT_TRUE(harness.Quiet());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (OpenFds() > fds && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_LE(OpenFds(), fds);
}

TEST(StressTest, ACallerThatDoesNotReadStopsItsOwnUploadAndGrowsNothing) {
  ServerHarness harness(WideAnswers());
  constexpr int64_t kTokens = 4096;  // a 256 MiB answer
  DenseCache source(harness.mapper().source.geometry, kTokens);
  source.Randomise(5);
  const auto chunks = harness.Chunks(source);
  OpenStream slow(harness, kTokens);
  std::thread upload([&] { slow.Upload(chunks); });
  // A reader of another stream is not held up.
  for (int i = 0; i < 3; ++i) {
    DenseCache small(harness.mapper().source.geometry, 128);
    small.Randomise(i);
    EXPECT_EQ(harness.Call(harness.Header(128), harness.Chunks(small)).decision.outcome(),
              v1::OUTCOME_APPLIED);
  }
  uint64_t highest = 0;  // every payload byte that the server holds is in its pool
  v1::TransferEvent event;
  v1::Decision decision;
  while (slow.stream->Read(&event)) {
    highest = std::max(highest, harness.server().buffers().bytes_in_use());
    if (event.has_completed()) decision = event.completed().decision();
  }
  upload.join();
  EXPECT_TRUE(slow.stream->Finish().ok());
  EXPECT_EQ(decision.outcome(), v1::OUTCOME_APPLIED) << decision.detail();
  EXPECT_EQ(decision.bytes_out(), int64_t{kTokens - 1} * 64 * 1024);
  EXPECT_LT(highest, uint64_t{24} << 20);  // two tiles of 4 MiB, and what gRPC is sending
  EXPECT_TRUE(harness.Quiet());
}

TEST(DrainTest, NoAcceptedTransferIsLostAndNewOnesAreTold) {
  ServerHarness harness;
  DenseCache source(harness.mapper().source.geometry, 100);
  source.Randomise(5);
  const auto chunks = harness.Chunks(source);
  std::atomic<int> applied{0}, draining{0}, gone{0}, lost{0};
  test::Notification under_load;
  std::vector<std::thread> callers;
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      for (;;) {
        const CallResult got = harness.Call(harness.Header(100), chunks);
        const bool accepted = !got.events.empty() && got.events[0].has_accepted();
        if (got.decision.outcome() == v1::OUTCOME_APPLIED) {
          if (applied.fetch_add(1) == 50) under_load.Notify();
        } else if (accepted) {
          ++lost;
          ADD_FAILURE() << got.status.error_code() << " " << got.status.error_message() << " "
                        << got.decision.ShortDebugString();
        } else {
          got.decision.reason() == v1::REASON_DRAINING ? ++draining : ++gone;
          EXPECT_TRUE(got.status.ok() || got.status.error_code() == grpc::UNAVAILABLE)
              << got.status.error_message();
          return;
        }
      }
    });
  }
  under_load.WaitForNotification();
  harness.server().RequestDrain(/*skip_delay=*/true);
  harness.server().Wait();
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(draining + gone, 8);
  EXPECT_GT(applied, 50);
}

TEST(DrainTest, AnIdleHalfOpenStreamDoesNotHoldUpTheEnd) {
  HarnessOptions options;
  options.configure = [](v1::Config* config) {
    config->mutable_drain()->mutable_deadline()->set_seconds(0);
    config->mutable_drain()->mutable_deadline()->set_nanos(200000000);
  };
  ServerHarness harness(std::move(options));
  OpenStream idle(harness, 100);
  harness.server().RequestDrain(/*skip_delay=*/true);
  harness.server().Wait();
  v1::TransferEvent event;
  while (idle.stream->Read(&event)) {
  }
  EXPECT_FALSE(idle.stream->Finish().ok());
  EXPECT_TRUE(harness.Quiet());
}

TEST(DrainTest, ServesDuringTheDelayThoughNotReady) {
  HarnessOptions options;
  options.configure = [](v1::Config* config) {
    config->mutable_drain()->mutable_delay()->set_seconds(3600);
  };
  ServerHarness harness(std::move(options));
  std::thread stopping([&] { harness.server().Wait(); });
  harness.server().RequestDrain(/*skip_delay=*/false);
  while (harness.server().state().state() != v1::SERVER_STATE_DRAINING) {
    std::this_thread::yield();
  }
  EXPECT_EQ(harness.server().state().ready().why, "draining");
  EXPECT_EQ(harness.GrpcHealth(std::string("kvbridge.route/") + kRoute), "NOT_SERVING");
  DenseCache source(harness.mapper().source.geometry, 20);
  source.Randomise(5);
  EXPECT_EQ(harness.Call(harness.Header(20), harness.Chunks(source)).decision.outcome(),
            v1::OUTCOME_APPLIED);
  harness.server().RequestDrain(/*skip_delay=*/false);  // the second one does not wait
  stopping.join();
}

}  // namespace
}  // namespace kvbridge::server
