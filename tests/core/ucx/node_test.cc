#include "core/ucx/node.h"

#include <csignal>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "core/base/mutex.h"
#include "core/ucx/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::ucx {
namespace {

using testing::HasSubstr;

constexpr size_t kFrameBytes = 1 << 20;

// Values that another thread produces.
template <typename T>
class Queue {
 public:
  void Push(T value) {
    base::MutexLock lock(&mutex_);
    values_.push_back(std::move(value));
    changed_.SignalAll();
  }
  T Pop() {
    base::MutexLock lock(&mutex_);
    while (values_.empty()) changed_.Wait(&mutex_);
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::deque<T> values_ ABSL_GUARDED_BY(mutex_);
};

std::vector<std::byte> Pattern(size_t size, int seed) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 977 + seed);
  return bytes;
}

std::unique_ptr<Node> MakeNodeOrDie(const NodeOptions& options) {
  auto node = MakeNode(options);
  EXPECT_TRUE(node.ok()) << node.status();
  return *std::move(node);
}

absl::StatusOr<Frame> ReadOne(Inbox& inbox) {
  Queue<absl::StatusOr<Frame>> frames;
  inbox.Read([&](absl::StatusOr<Frame> frame) { frames.Push(std::move(frame)); });
  return frames.Pop();
}

absl::Status SendOne(Outbox& outbox, std::string head, std::span<const std::byte> payload) {
  Queue<absl::Status> sent;
  outbox.Send(std::move(head), payload, [&](absl::Status status) { sent.Push(std::move(status)); });
  return sent.Pop();
}

bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// A receiver and a sender in one process, over loopback.
class NodeTest : public testing::Test {
 protected:
  std::unique_ptr<Inbox> Expect(int frames = 2) {
    auto inbox = receiver_->Expect({.max_frame_bytes = kFrameBytes, .frames = frames}, *buffers_);
    EXPECT_TRUE(inbox.ok()) << inbox.status();
    return *std::move(inbox);
  }
  std::unique_ptr<Outbox> Connect(absl::string_view token) {
    auto outbox = sender_->Connect(receiver_->address(), token);
    EXPECT_TRUE(outbox.ok()) << outbox.status();
    return *std::move(outbox);
  }
  // Both nodes have done whatever came before, and still serve.
  void ExpectOthersServed() {
    const auto inbox = Expect();
    const auto outbox = Connect(inbox->token());
    const auto bytes = Pattern(1000, 7);
    Queue<absl::Status> sent;
    outbox->Send("fence", bytes, [&](absl::Status status) { sent.Push(std::move(status)); });
    const auto frame = ReadOne(*inbox);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_TRUE(SameBytes(frame->payload, bytes));
    EXPECT_EQ(sent.Pop(), absl::OkStatus());
  }

  const std::shared_ptr<kv::BufferPool> buffers_ = kv::BufferPool::Create(64 << 20);
  const std::unique_ptr<Node> receiver_ = MakeNodeOrDie({.listen = "127.0.0.1:0"});
  const std::unique_ptr<Node> sender_ = MakeNodeOrDie({});
};

TEST_F(NodeTest, FramesArriveInOrderWithTheirHeads) {
  const auto inbox = Expect();
  const auto outbox = Connect(inbox->token());
  std::vector<std::vector<std::byte>> payloads;
  for (const size_t size : {size_t{1}, size_t{100}, size_t{65537}, kFrameBytes, kFrameBytes - 1}) {
    payloads.push_back(Pattern(size, static_cast<int>(payloads.size())));
  }
  Queue<absl::Status> sent;
  for (size_t i = 0; i < payloads.size(); ++i) {
    outbox->Send("head " + std::to_string(i), payloads[i],
                 [&](absl::Status status) { sent.Push(std::move(status)); });
  }
  for (size_t i = 0; i < payloads.size(); ++i) {
    const auto frame = ReadOne(*inbox);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->sequence, i);
    EXPECT_EQ(frame->head, "head " + std::to_string(i));
    EXPECT_TRUE(SameBytes(frame->payload, payloads[i])) << i;
    EXPECT_EQ(sent.Pop(), absl::OkStatus());
  }
  EXPECT_EQ(receiver_->counts().frames_received, 5);
  EXPECT_EQ(receiver_->counts().bytes_received, sender_->counts().bytes_sent);
}

TEST_F(NodeTest, WhoHoldsFramesStopsTheSenderAndNobodyElse) {
  const auto inbox = Expect(2);
  const auto outbox = Connect(inbox->token());
  const auto bytes = Pattern(kFrameBytes, 1);
  Queue<absl::Status> sent;
  for (int i = 0; i < 5; ++i) {
    outbox->Send("", bytes, [&](absl::Status status) { sent.Push(std::move(status)); });
  }
  std::deque<Frame> held;
  for (int i = 0; i < 2; ++i) held.push_back(*ReadOne(*inbox));
  ExpectOthersServed();
  EXPECT_EQ(receiver_->counts().frames_received, 3);  // two of them, and the fence's
  for (int i = 2; i < 5; ++i) {
    held.pop_front();
    const auto frame = ReadOne(*inbox);
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_TRUE(SameBytes(frame->payload, bytes));
    held.push_back(*frame);
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sent.Pop(), absl::OkStatus());
}

TEST_F(NodeTest, AWrongTokenIsRefusedAndHarmsNobody) {
  const auto inbox = Expect();
  const auto bytes = Pattern(kFrameBytes, 1);
  const auto stranger = Connect(std::string(kTokenBytes, 'x'));
  EXPECT_EQ(SendOne(*stranger, "", bytes).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(receiver_->counts().unknown_tokens, 1);
  EXPECT_EQ(receiver_->counts().frames_received, 0);

  const auto outbox = Connect(inbox->token());
  outbox->Send("right", bytes, [](absl::Status) {});
  const auto frame = ReadOne(*inbox);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->head, "right");
}

TEST_F(NodeTest, ATokenIsWorthOneConnectionAndNothingAfterItsInbox) {
  auto inbox = Expect();
  const std::string token = inbox->token();
  const auto bytes = Pattern(100, 1);
  const auto first = Connect(token);
  first->Send("first", bytes, [](absl::Status) {});
  ASSERT_TRUE(ReadOne(*inbox).ok());
  const auto second = Connect(token);
  EXPECT_EQ(SendOne(*second, "", bytes).code(), absl::StatusCode::kUnavailable);
  inbox.reset();
  const auto late = Connect(token);
  EXPECT_EQ(SendOne(*late, "", bytes).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(receiver_->counts().unknown_tokens, 2);
}

TEST_F(NodeTest, AnInboxThatGoesFailsWhatIsUnderWayAndFreesItsMemory) {
  auto inbox = Expect(1);
  const auto outbox = Connect(inbox->token());
  const auto bytes = Pattern(kFrameBytes, 1);
  Queue<absl::Status> sent;
  for (int i = 0; i < 3; ++i) {
    outbox->Send("", bytes, [&](absl::Status status) { sent.Push(std::move(status)); });
  }
  auto held = ReadOne(*inbox);
  ASSERT_TRUE(held.ok()) << held.status();
  inbox.reset();
  EXPECT_EQ(sent.Pop(), absl::OkStatus());
  for (int i = 1; i < 3; ++i) EXPECT_EQ(sent.Pop().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(SameBytes(held->payload, bytes));  // its holder's still
  held = absl::CancelledError();
  ExpectOthersServed();
  EXPECT_EQ(SendOne(*outbox, "", bytes).code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, AnOutboxThatGoesCancelsItsFramesAndTheReaderIsTold) {
  const auto inbox = Expect(1);
  auto outbox = Connect(inbox->token());
  const auto bytes = Pattern(kFrameBytes, 1);
  Queue<absl::Status> sent;
  for (int i = 0; i < 3; ++i) {
    outbox->Send("", bytes, [&](absl::Status status) { sent.Push(std::move(status)); });
  }
  const auto held = ReadOne(*inbox);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(sent.Pop(), absl::OkStatus());
  outbox.reset();
  for (int i = 1; i < 3; ++i) EXPECT_EQ(sent.Pop().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ReadOne(*inbox).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, WhatArrivedIsReadThoughTheSenderIsGone) {
  const auto inbox = Expect(2);
  auto outbox = Connect(inbox->token());
  const auto bytes = Pattern(kFrameBytes, 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(SendOne(*outbox, "", bytes), absl::OkStatus());
  outbox.reset();
  ExpectOthersServed();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ReadOne(*inbox).ok());
  EXPECT_EQ(ReadOne(*inbox).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, AFrameBeyondItsBoundIsDataLoss) {
  const auto inbox = Expect();
  const auto outbox = Connect(inbox->token());
  const auto bytes = Pattern(kFrameBytes + 1, 1);
  Queue<absl::Status> sent;
  outbox->Send("", bytes, [&](absl::Status status) { sent.Push(std::move(status)); });
  const auto frame = ReadOne(*inbox);
  EXPECT_EQ(frame.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(frame.status().message()), HasSubstr("at most 1048576 bytes"));
  EXPECT_EQ(sent.Pop().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, AHeadBeyondItsBoundIsMalformed) {
  const auto inbox = Expect();
  const auto outbox = Connect(inbox->token());
  EXPECT_EQ(SendOne(*outbox, std::string(kMaxHeadBytes + 1, 'h'), Pattern(10, 1)).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(receiver_->counts().malformed, 1);
}

TEST_F(NodeTest, NobodyThereIsUnavailable) {
  auto gone = MakeNodeOrDie({.listen = "127.0.0.1:0"});
  const std::string address = gone->address();
  gone.reset();
  const auto outbox = sender_->Connect(address, std::string(kTokenBytes, 'x'));
  ASSERT_TRUE(outbox.ok()) << outbox.status();
  EXPECT_EQ(SendOne(**outbox, "", Pattern(10, 1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(NodeTest, AReceiverThatTakesNothingIsGivenUp) {
  const auto impatient = MakeNodeOrDie({.timeout = absl::Milliseconds(300)});
  const auto inbox = Expect(1);
  const auto outbox = impatient->Connect(receiver_->address(), inbox->token());
  ASSERT_TRUE(outbox.ok()) << outbox.status();
  const auto bytes = Pattern(kFrameBytes, 1);
  EXPECT_EQ(SendOne(**outbox, "", bytes), absl::OkStatus());
  const absl::Status given_up = SendOne(**outbox, "", bytes);
  EXPECT_EQ(given_up.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(given_up.message()), HasSubstr("took no frame for 300ms"));
}

TEST_F(NodeTest, WithoutRoomForBuffersNothingIsExpected) {
  const auto inbox = receiver_->Expect({.max_frame_bytes = 32 << 20, .frames = 3}, *buffers_);
  EXPECT_EQ(inbox.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(buffers_->bytes_in_use(), 0);
}

TEST_F(NodeTest, WrongAddressesTokensAndTransportsAreRefused) {
  for (const char* address : {"", "host", "example.org:1", "127.0.0.1:x", "[::1:5"}) {
    EXPECT_EQ(sender_->Connect(address, std::string(kTokenBytes, 'x')).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(sender_->Connect("127.0.0.1:1", "short").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeNode({.transports = "pigeon"}).ok());
  EXPECT_FALSE(MakeNode({.listen = receiver_->address()}).ok());
}

TEST(NodeLifecycleTest, AKilledSenderEndsTheTransferAndLeavesNothing) {
  int to_child[2];
  ASSERT_EQ(pipe(to_child), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // told "address token", sends until it is killed
    close(to_child[1]);
    std::string told(256, '\0');
    told.resize(std::max<ssize_t>(0, read(to_child[0], told.data(), told.size())));
    const auto node = MakeNode({});
    const auto bytes = Pattern(kFrameBytes, 1);
    const auto outbox = (*node)->Connect(told.substr(0, told.size() - kTokenBytes - 1),
                                         told.substr(told.size() - kTokenBytes));
    while (SendOne(**outbox, "", bytes).ok()) {
    }
    _exit(0);
  }
  close(to_child[0]);
  const auto buffers = kv::BufferPool::Create(64 << 20);
  auto node = MakeNodeOrDie({.listen = "127.0.0.1:0"});
  auto inbox = node->Expect({.max_frame_bytes = kFrameBytes, .frames = 4}, *buffers);
  ASSERT_TRUE(inbox.ok()) << inbox.status();
  const std::string told = node->address() + " " + (*inbox)->token();
  ASSERT_EQ(write(to_child[1], told.data(), told.size()), static_cast<ssize_t>(told.size()));
  close(to_child[1]);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(ReadOne(**inbox).ok());
  kill(child, SIGKILL);
  absl::Status end;
  while (end.ok()) end = ReadOne(**inbox).status();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  waitpid(child, nullptr, 0);
  inbox->reset();
  node.reset();
  EXPECT_EQ(buffers->bytes_in_use(), 0);
}

}  // namespace
}  // namespace kvbridge::ucx
