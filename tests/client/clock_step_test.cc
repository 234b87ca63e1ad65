// The client while somebody sets the machine's calendar.
#include <atomic>
#include <chrono>
#include <ctime>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/cpp/client.h"
#include "tests/client/test_cache.h"
#include "tests/support/fake_kvbridge_server.h"

namespace {
std::atomic<int64_t> calendar_off_by{0};  // seconds
}

// Stands before the C library's for all of this process, gRPC too. The kernel knows nothing of it:
// what sleeps until a moment of a calendar that was set forward here sleeps as it would where the
// machine's was set back.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += calendar_off_by;
  return result;
}

namespace kvbridge::client {
namespace {

using test::Behaviour;
using test::FakeKvbridgeServer;

constexpr int64_t kDay = 24 * 3600;
// Nobody listens here: reserved ports are not handed out to others.
constexpr char kNobody[] = "127.0.0.1:1";

// Each test begins by the machine's calendar, and sets it by GetParam() seconds.
class ClockStepTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    source_.Fill();
    calendar_off_by = 0;
  }
  void TearDown() override { calendar_off_by = 0; }
  static void Step() { calendar_off_by += GetParam(); }

  // The calendar is set once the transfer has begun: when it asks for its token.
  static ClientOptions SteppingOptions(const std::string& target) {
    return {.target = target,
            .token =
                [stepped = false]() mutable {
                  if (!std::exchange(stepped, true)) Step();
                  return std::string("token");
                },
            .retry = {.max_attempts = 3, .initial_backoff = absl::Milliseconds(1)}};
  }
  TransferResult Transfer(Client& client, absl::Duration deadline) {
    TransferOptions options;
    options.header.set_request_id("r");
    options.deadline = deadline;
    options.plane = PlaneChoice::kInline;
    return client.Transfer(options, source_.source(), target_.target()).value();
  }

  TestCache source_{kSmallShape, Layout::kHeadMajor};
  TestCache target_{kSmallShape, Layout::kTokenMajor};
};

INSTANTIATE_TEST_SUITE_P(Directions, ClockStepTest, ::testing::Values(kDay, -kDay));

TEST_P(ClockStepTest, TheCalendarIsWhatATestSays) {
  const auto before = std::chrono::system_clock::now();
  Step();
  const auto step = std::chrono::system_clock::now() - before;
  EXPECT_NEAR(std::chrono::duration<double>(step).count(), static_cast<double>(GetParam()), 3600);
}

TEST_P(ClockStepTest, ATransferGoesOnAndItsTimesAreItsOwn) {
  FakeKvbridgeServer server({});
  auto client = Client::Create(SteppingOptions(server.target())).value();
  const TransferResult result = Transfer(*client, absl::Minutes(10));
  EXPECT_TRUE(result.applied()) << result.reason << ": " << result.detail;
  for (const absl::Duration each : {result.timings.total, result.timings.admission,
                                    result.timings.sending, result.timings.receiving}) {
    EXPECT_GE(each, absl::ZeroDuration());
    EXPECT_LT(each, absl::Minutes(10));
  }
}

TEST_P(ClockStepTest, ADeadlineComesWhenItWasToCome) {
  FakeKvbridgeServer server({.behaviour = Behaviour::kSilent});
  auto client = Client::Create({.target = server.target()}).value();
  Step();
  EXPECT_EQ(Transfer(*client, absl::Milliseconds(300)).reason, "deadline_exceeded");
  EXPECT_EQ(client->Health("", absl::Minutes(10)).status(), absl::OkStatus());
}

TEST_P(ClockStepTest, WhatMayBeTriedAgainIs) {
  auto client = Client::Create(SteppingOptions(kNobody)).value();
  const TransferResult result = Transfer(*client, absl::Minutes(10));
  EXPECT_EQ(result.reason, "unreachable");
  EXPECT_EQ(result.attempts, 3);
}

TEST_P(ClockStepTest, ACircuitStaysOpenForItsTimeAndNoLonger) {
  for (const absl::Duration open_for : {absl::Hours(1), absl::Milliseconds(50)}) {
    auto client = Client::Create({.target = kNobody,
                                  .retry = {.max_attempts = 1},
                                  .circuit = {.failures = 1, .open_for = open_for}})
                      .value();
    EXPECT_EQ(Transfer(*client, absl::Minutes(10)).reason, "unreachable");
    Step();
    if (open_for == absl::Hours(1)) {
      EXPECT_EQ(Transfer(*client, absl::Minutes(10)).reason, "circuit_open");
    } else {
      while (Transfer(*client, absl::Minutes(10)).reason == "circuit_open") continue;
    }
  }
}

}  // namespace
}  // namespace kvbridge::client
